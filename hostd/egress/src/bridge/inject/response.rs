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
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, TRANSFER_ENCODING},
    http::response::Parts,
};
use std::sync::Arc;

/// A body that could not be searched is not passed on.
#[derive(Debug)]
pub struct Unreadable(pub String);

pub fn scrub(
    response: Response<Incoming>,
    method: &Method,
    finder: Option<Arc<Finder>>,
    mut line: Line,
) -> Result<Response<Download>, Unreadable> {
    let (mut parts, incoming) = response.into_parts();
    if finder.is_some() {
        // The words beside the status are the server's to choose.
        parts.extensions.remove::<ReasonPhrase>();
        transfer(&parts).inspect_err(|_| line.forget())?;
    }
    rewrite::strip(&mut parts.headers, parts.version, parts.status == StatusCode::SWITCHING_PROTOCOLS);
    let Some(finder) = finder else {
        return Ok(Response::from_parts(parts, Download::server(incoming, None, line)));
    };
    scrub_headers(&mut parts.headers, &finder, &mut line);
    // gRPC tells an answer that is only trailers by the end of the stream with it.
    let bodiless = incoming.is_end_stream()
        || *method == Method::HEAD
        || parts.status.is_informational()
        || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if bodiless {
        return Ok(Response::from_parts(parts, Download::server(incoming, None, line)));
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
            other => return Err(Unreadable(other.chars().take(32).collect())),
        }
    }
    Ok(gzip)
}

/// Encodings of a message on its way, or of messages inside the body, which
/// nobody asked for and which cannot be read.
fn transfer(parts: &Parts) -> Result<(), Unreadable> {
    let listed = [(TRANSFER_ENCODING, "chunked"), (HeaderName::from_static("grpc-encoding"), "identity")];
    for (name, plain) in listed {
        for value in parts.headers.get_all(name) {
            let value = value.to_str().unwrap_or("unreadable").trim();
            if !value.eq_ignore_ascii_case(plain) {
                return Err(Unreadable(value.chars().take(32).collect()));
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
