//! Requests over the REST socket, each on a connection of its own.
//!
//! Of the client crate only its models are used. It sends no descriptors: the taps go
//! over the socket beside the words that name them, for by name a tap could be opened
//! only with a privilege in its namespace, and not while hostd holds it so that no
//! packet for a sleeping machine is lost. And it takes an answer of any length, which
//! the process at the other end, the least trusted one of the host, would decide on.

use crate::wire::{Luggage, Writer};
use http_body_util::{BodyExt, Limited};
use hyper::{Method, Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use std::{io, os::fd::OwnedFd, path::Path};
use tokio::net::UnixStream;

/// The longest body of an answer. The longest that there is, the description of a
/// machine, takes some four kilobytes.
pub(super) const ANSWER_MAX: usize = 64 * 1024;

/// Sends one request; its answer as it is.
pub(super) async fn send(
    socket: &Path,
    method: Method,
    path: &str,
    body: String,
    descriptors: Vec<OwnedFd>,
) -> io::Result<(StatusCode, String)> {
    let (read, write) = UnixStream::connect(socket).await?.into_split();
    let luggage = Luggage::default();
    descriptors.into_iter().for_each(|fd| luggage.put(fd));
    let stream = tokio::io::join(read, Writer::new(write, luggage));
    let (mut sender, connection) =
        http1::handshake::<_, String>(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = Request::builder()
        .method(method)
        .uri(format!("/api/v1/{path}"))
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(io::Error::other)?;
    let asked = async {
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await.map_err(io::Error::other)?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    };
    // The connection moves only while it is polled, and ends with the answer.
    let mut asked = std::pin::pin!(asked);
    tokio::select! {
        answer = &mut asked => answer,
        ended = connection => {
            ended.map_err(io::Error::other)?;
            asked.await
        }
    }
}
