//! Taking secrets out of a response.

use super::{
    body::{Download, Line, Scrub, scrub_headers},
    messages::{Messages, has_messages},
    rewrite,
    scrub::{Finder, Stream, Style},
};
use hyper::{
    Method, Response, StatusCode,
    body::{Body, Incoming},
    ext::ReasonPhrase,
    header::{
        CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue,
        TRANSFER_ENCODING,
    },
    http::response::Parts,
};
use std::sync::Arc;

/// Why a body cannot be searched, which is not passed on then.
#[derive(Debug)]
pub struct Unreadable(pub String);

pub fn scrub(
    response: Response<Incoming>,
    method: &Method,
    finder: Option<Arc<Finder>>,
    mut line: Line,
) -> Result<Response<Download>, Unreadable> {
    let (mut parts, incoming) = response.into_parts();
    if let Some(finder) = &finder {
        // The words beside the status are the server's to choose.
        parts.extensions.remove::<ReasonPhrase>();
        // Before anything is refused: a refusal says what could not be read.
        scrub_headers(&mut parts.headers, finder, &mut line);
        whole(&parts).and_then(|()| transfer(&parts)).inspect_err(|_| line.forget())?;
    }
    rewrite::strip(&mut parts.headers, parts.version, parts.status == StatusCode::SWITCHING_PROTOCOLS);
    let Some(finder) = finder else {
        return Ok(Response::from_parts(parts, Download::server(incoming, None, line)));
    };
    // gRPC tells an answer that is only trailers by the end of the stream with it.
    if incoming.is_end_stream() {
        return Ok(Response::from_parts(parts, Download::server(incoming, None, line)));
    }
    let bodiless = *method == Method::HEAD
        || parts.status.is_informational()
        || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if bodiless {
        // HTTP/2 may have trailers all the same.
        let scrub = Scrub::new(finder.clone(), Stream::new(finder, Style::SameLength), false, None);
        return Ok(Response::from_parts(parts, Download::server(incoming, Some(scrub), line)));
    }
    // A refusal has a line of its own.
    let gzip = encoding(&parts).inspect_err(|_| line.forget())?;
    let kind = kind(&parts);
    let style = style(&kind);
    if gzip {
        parts.headers.remove(CONTENT_ENCODING);
    }
    if gzip || style == Style::Text {
        parts.headers.remove(CONTENT_LENGTH);
    }
    let messages = (has_messages(&kind) && !gzip).then(Messages::default);
    let scrub = Scrub::new(finder.clone(), Stream::new(finder, style), gzip, messages);
    Ok(Response::from_parts(parts, Download::server(incoming, Some(scrub), line)))
}

/// Is it gzip? Anything else was not asked for and cannot be read.
fn encoding(parts: &Parts) -> Result<bool, Unreadable> {
    let mut gzip = false;
    for value in parts.headers.get_all(CONTENT_ENCODING) {
        match value.to_str().unwrap_or("unreadable").trim().to_ascii_lowercase().as_str() {
            "identity" | "" => {}
            "gzip" | "x-gzip" if !gzip => gzip = true,
            other => return Err(encoded(other)),
        }
    }
    Ok(gzip)
}

fn encoded(by: &str) -> Unreadable {
    let by: String = by.chars().take(32).collect();
    Unreadable(format!("the response is encoded as {by}, which cannot be searched"))
}

/// Is it all of an answer? No header that is known has asked for some bytes of it.
/// Some servers count what they list in other units, and say so with the same status.
fn whole(parts: &Parts) -> Result<(), Unreadable> {
    let begins = |name: HeaderName, with: &str| {
        let value = parts.headers.get(name).map_or(&[][..], HeaderValue::as_bytes);
        value.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()))
    };
    let in_bytes = begins(CONTENT_RANGE, "bytes") || begins(CONTENT_TYPE, "multipart/byteranges");
    if parts.status == StatusCode::PARTIAL_CONTENT && in_bytes {
        return Err(Unreadable("the response is a part of an answer, which cannot be searched".to_owned()));
    }
    Ok(())
}

/// Encodings of a message on its way, or of messages inside the body, which
/// nobody asked for and which cannot be read.
fn transfer(parts: &Parts) -> Result<(), Unreadable> {
    let listed = [
        (TRANSFER_ENCODING, "chunked"),
        (HeaderName::from_static("grpc-encoding"), "identity"),
        (HeaderName::from_static("connect-content-encoding"), "identity"),
    ];
    for (name, plain) in listed {
        for value in parts.headers.get_all(name) {
            let value = value.to_str().unwrap_or("unreadable").trim();
            if !value.eq_ignore_ascii_case(plain) {
                return Err(encoded(value));
            }
        }
    }
    Ok(())
}

fn kind(parts: &Parts) -> String {
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("text/plain");
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Text may change its length; in formats that count bytes it must not.
fn style(kind: &str) -> Style {
    let text = kind.starts_with("text/")
        || ["json", "xml", "javascript", "yaml", "x-www-form-urlencoded", "x-ndjson"]
            .iter()
            .any(|format| kind.ends_with(format));
    if text { Style::Text } else { Style::SameLength }
}
