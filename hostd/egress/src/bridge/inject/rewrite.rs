//! Putting secrets into a request.

use super::scrub::{Finder, Needles};
use crate::bridge::rules::{Form, Ready};
use base64::{Engine, engine::general_purpose::STANDARD};
use hyper::{
    HeaderMap, Version,
    header::{
        ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT,
        HOST, HeaderName, HeaderValue, IF_RANGE, PROXY_AUTHORIZATION, RANGE, SEC_WEBSOCKET_EXTENSIONS, TE,
        TRANSFER_ENCODING, UPGRADE,
    },
    http::{request::Parts, uri::PathAndQuery},
};
use std::sync::Arc;
use zeroize::Zeroizing;

#[derive(Debug, PartialEq, Eq)]
pub struct Unfit(pub &'static str);

/// Headers of one connection, which are not for the next.
static HOP_BY_HOP: [HeaderName; 4] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHORIZATION,
    HeaderName::from_static("http2-settings"),
];

/// Headers of the message itself. One that names them among those of the connection would
/// have them taken out: the server would be asked for no host, and what an answer is
/// encoded as would not be known.
static END_TO_END: [HeaderName; 4] = [HOST, CONTENT_LENGTH, CONTENT_ENCODING, CONTENT_TYPE];

/// By which a part of an answer is asked for, whatever the server calls it.
static PARTS: [HeaderName; 4] =
    [RANGE, IF_RANGE, HeaderName::from_static("request-range"), HeaderName::from_static("x-ms-range")];

/// In which encodings messages inside of a body are taken.
static MESSAGE_ENCODINGS: [HeaderName; 2] =
    [HeaderName::from_static("grpc-accept-encoding"), HeaderName::from_static("connect-accept-encoding")];

/// What a request carries that its secrets do not say: credentials that were
/// put together from what the guest sent, each with its placeholder.
pub type Extra = Vec<(Zeroizing<Vec<u8>>, String)>;

pub fn request(parts: &mut Parts, secrets: &[Arc<Ready>], upgrade: bool) -> Result<Extra, Unfit> {
    strip(&mut parts.headers, parts.version, upgrade);
    parts.headers.remove(EXPECT);
    if parts.version == Version::HTTP_2 {
        parts.headers.remove(HOST);
    }
    let mut extra = Extra::new();
    for secret in secrets {
        for form in &secret.forms {
            match form {
                Form::Header(name, value) => {
                    parts.headers.remove(name);
                    parts.headers.insert(name.clone(), value.clone());
                }
                Form::Placeholder => {
                    headers(&mut parts.headers, secret, &mut extra)?;
                    address(parts, secret)?;
                }
                Form::Certificate(_) | Form::Ssh(_) => {}
            }
        }
    }
    if secrets.iter().any(|secret| secret.is_text()) {
        // What comes back has to be readable.
        parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // Half a value is no value, and neither is a compressed one.
        for name in PARTS.iter().chain([&SEC_WEBSOCKET_EXTENSIONS]) {
            parts.headers.remove(name);
        }
        for name in &MESSAGE_ENCODINGS {
            if parts.headers.contains_key(name) {
                parts.headers.insert(name, HeaderValue::from_static("identity"));
            }
        }
    }
    Ok(extra)
}

/// What is looked for in the responses to requests with these secrets.
pub fn needles(secrets: &[Arc<Ready>]) -> Needles {
    let mut needles = Needles::default();
    for secret in secrets.iter().filter(|secret| secret.is_text()) {
        needles.add_value(secret.value.expose(), &secret.placeholder);
        for form in &secret.forms {
            // Basic's value is not in it as it is.
            if let Form::Header(_, value) = form {
                needles.add(credentials(value).to_vec(), &secret.placeholder);
            }
        }
    }
    needles
}

/// The part of a header that is the secret: after `Bearer ` or `Basic `.
fn credentials(value: &HeaderValue) -> &[u8] {
    let bytes = value.as_bytes();
    bytes.rsplit(|byte| *byte == b' ').next().filter(|last| last.len() >= 8).unwrap_or(bytes)
}

pub fn strip(headers: &mut HeaderMap, version: Version, upgrade: bool) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in listed {
        if !END_TO_END.contains(&name) && (name != UPGRADE || !upgrade) {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(TRANSFER_ENCODING);
    headers.remove(CONNECTION);
    if version != Version::HTTP_2 || headers.get(TE).is_some_and(|te| te != "trailers") {
        headers.remove(TE);
    }
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    } else {
        headers.remove(UPGRADE);
    }
}

fn headers(headers: &mut HeaderMap, secret: &Ready, extra: &mut Extra) -> Result<(), Unfit> {
    for (name, value) in headers.iter_mut() {
        let replaced = if name == AUTHORIZATION
            && let Some(pair) = basic(value, secret)
        {
            let encoded = Zeroizing::new(STANDARD.encode(&*pair));
            extra.push((Zeroizing::new(encoded.as_bytes().to_vec()), secret.placeholder.clone()));
            Zeroizing::new([b"Basic ", encoded.as_bytes()].concat())
        } else if let Some(replaced) = replace(value.as_bytes(), secret, <[u8]>::to_vec) {
            replaced
        } else {
            continue;
        };
        let mut fresh =
            HeaderValue::from_bytes(&replaced).map_err(|_| Unfit("the value does not fit into a header"))?;
        fresh.set_sensitive(true);
        *value = fresh;
    }
    Ok(())
}

/// Basic credentials with the placeholder in them, replaced.
fn basic(value: &HeaderValue, secret: &Ready) -> Option<Zeroizing<Vec<u8>>> {
    let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = STANDARD.decode(encoded.trim()).ok()?;
    replace(&pair, secret, <[u8]>::to_vec)
}

fn address(parts: &mut Parts, secret: &Ready) -> Result<(), Unfit> {
    let Some(path) = parts.uri.path_and_query() else { return Ok(()) };
    let encode = |value: &[u8]| percent(value).into_bytes();
    let Some(replaced) = replace(path.as_str().as_bytes(), secret, encode) else { return Ok(()) };
    let unfit = || Unfit("the value does not fit into an address");
    let mut uri = parts.uri.clone().into_parts();
    uri.path_and_query = Some(PathAndQuery::try_from(replaced.as_slice()).map_err(|_| unfit())?);
    parts.uri = uri.try_into().map_err(|_| unfit())?;
    Ok(())
}

type Encode = fn(&[u8]) -> Vec<u8>;

/// How a body's format wants a value written; not at all if it is packed.
fn format(parts: &Parts) -> Option<Encode> {
    if parts.headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    Some(if kind.ends_with("json") {
        json
    } else if kind == "application/x-www-form-urlencoded" {
        |value| percent(value).into_bytes()
    } else {
        <[u8]>::to_vec
    })
}

/// How much longer than it is a body may become.
pub fn growth(parts: &Parts, secrets: &[Arc<Ready>], body: &[u8]) -> u64 {
    let Some(encode) = format(parts) else { return 0 };
    let of = |secret: &Arc<Ready>| {
        let count = secret.finder.as_ref().map_or(0, |finder| finder.find_iter(body).count());
        (count * encode(secret.value.expose()).len()) as u64
    };
    secrets.iter().filter(|secret| has_placeholder(secret)).map(of).sum()
}

/// Replaces placeholders in a body.
pub fn body(parts: &Parts, secrets: &[Arc<Ready>], body: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let encode = format(parts)?;
    let mut replaced = None::<Zeroizing<Vec<u8>>>;
    for secret in secrets.iter().filter(|secret| has_placeholder(secret)) {
        let now = replaced.as_ref().map_or(body, |replaced| replaced.as_slice());
        if let Some(next) = replace(now, secret, encode) {
            replaced = Some(next);
        }
    }
    replaced
}

/// The same for a body that goes by: what to look for, and what to put there.
pub fn replacements(parts: &Parts, secrets: &[Arc<Ready>]) -> Option<Finder> {
    let encode = format(parts)?;
    let mut needles = Needles::default();
    for secret in secrets.iter().filter(|secret| has_placeholder(secret)) {
        // Values that are sent as text are visible ASCII.
        let value = String::from_utf8(encode(secret.value.expose())).ok()?;
        needles.add(secret.placeholder.clone().into_bytes(), &value);
    }
    needles.build().ok().flatten()
}

pub fn has_placeholder(secret: &Ready) -> bool {
    secret.forms.iter().any(|form| matches!(form, Form::Placeholder))
}

fn replace(text: &[u8], secret: &Ready, encode: impl Fn(&[u8]) -> Vec<u8>) -> Option<Zeroizing<Vec<u8>>> {
    let finder = secret.finder.as_ref()?;
    if !finder.is_match(text) {
        return None;
    }
    let value = Zeroizing::new(encode(secret.value.expose()));
    Some(Zeroizing::new(finder.replace_all_bytes(text, &[&*value])))
}

fn json(value: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(value.len());
    for byte in value {
        if matches!(byte, b'"' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    escaped
}

fn percent(value: &[u8]) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}
