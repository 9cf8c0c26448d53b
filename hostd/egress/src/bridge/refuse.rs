//! Saying no, so that a person or an agent knows which rule and what to do.

use crate::control::Decision;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};

/// Never holds a value.
#[derive(Clone, Debug)]
pub struct Refused {
    pub status: StatusCode,
    pub rule: String,
    pub message: String,
    pub hint: String,
}

impl Refused {
    pub fn new(rule: impl Into<String>, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: StatusCode::FORBIDDEN, rule: rule.into(), message: message.into(), hint: hint.into() }
    }

    /// Nothing was refused: the server cannot be had.
    pub fn unreachable(rule: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_GATEWAY,
            rule: rule.into(),
            message: message.into(),
            hint: "try again later".to_owned(),
        }
    }

    pub fn note(&self, decision: &mut Decision) {
        decision.rule = self.rule.clone();
        decision.reason = self.message.clone();
    }

    fn text(&self) -> String {
        format!("berth: refused by {}: {}: {}\n", self.rule, self.message, self.hint)
    }

    fn json(&self) -> String {
        let error = serde_json::json!({
            "error": { "code": "egress_refused", "rule": self.rule, "message": self.message, "hint": self.hint }
        });
        format!("{error}\n")
    }

    /// Plain text where it was asked for, JSON otherwise.
    pub fn response(&self, accept: Option<&HeaderValue>) -> Response<Full<Bytes>> {
        let accept = accept.and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let (kind, body) = if accept.contains("text/plain") || accept.contains("text/html") {
            ("text/plain; charset=utf-8", self.text())
        } else {
            ("application/json", self.json())
        };
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert("berth-egress", HeaderValue::from_static("refused"));
        response
    }
}

/// A refusal as bytes, for where there is no HTTP server.
pub fn plain(refused: &Refused) -> Vec<u8> {
    let body = refused.text();
    let status = refused.status;
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\nberth-egress: refused\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub fn document(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}
