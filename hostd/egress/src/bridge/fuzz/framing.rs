//! Whatever the guard lets through, hyper frames as the guard did.

use super::{Random, run};
use crate::bridge::inject::{
    framing::tests::bodies,
    guard::{Guard, Watch},
};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, server::conn, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const LIMIT: usize = 4096;

/// A guest that sends these pieces, then no more, and does not listen.
struct Pieces(std::vec::IntoIter<Vec<u8>>);

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(mut piece) = self.0.next() else { return Poll::Ready(Ok(())) };
        let rest = piece.split_off(piece.len().min(buffer.remaining()));
        buffer.put_slice(&piece);
        if !rest.is_empty() {
            self.0 = [rest].into_iter().chain(self.0.as_slice().to_vec()).collect::<Vec<_>>().into_iter();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The bodies that hyper read whole, behind a guard.
async fn read(bytes: &[u8], random: &mut Random) -> (Vec<Vec<u8>>, bool) {
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(1 + random.below(rest.len()));
        pieces.push(piece.to_vec());
        rest = later;
    }
    let (watch, found) = (Arc::new(Watch::default()), Arc::new(Mutex::new(Vec::new())));
    let guard = Guard::new(Pieces(pieces.into_iter()), LIMIT, watch.clone());
    let refused = Arc::new(Mutex::new(false));
    let service = service_fn(|request: Request<Incoming>| {
        let (watch, found, refused) = (watch.clone(), found.clone(), refused.clone());
        async move {
            let number = watch.begin();
            if watch.fault(number).is_some() {
                *refused.lock().unwrap() = true;
            } else if let Ok(body) = request.into_body().collect().await {
                found.lock().unwrap().push(body.to_bytes().to_vec());
            }
            watch.end(false);
            Ok::<_, Infallible>(Response::new(Full::<&[u8]>::default()))
        }
    });
    // However it ends: what counts is what was read.
    let _ = conn::http1::Builder::new()
        .half_close(true)
        .max_headers(128)
        .max_header_size(LIMIT)
        .serve_connection(TokioIo::new(guard), service)
        .await;
    let refused = *refused.lock().unwrap() || watch.unsaid().is_some();
    (found.lock().unwrap().clone(), refused)
}

#[test]
fn fuzz_framing() {
    let samples: [&[u8]; 3] = [
        b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1e\r\n\
          GET /c HTTP/1.1\r\nHost: abc\r\n\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n0\r\nX: y\r\n\r\n\
          POST /b HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    ];
    let words: &[&[u8]] = &[
        b"Content-Length: 5\r\n",
        b"Content-Length: +5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"transfer-encoding: identity\r\n",
        b"Upgrade: websocket\r\n",
        b"Expect: 100-continue\r\n",
        b"GET /smuggled HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b";x=y",
        b" ",
        b"\t",
        b"0",
        b"0\r\n\r\n",
        b"\0",
        b":",
        b"HTTP/1.0",
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut alike, mut refusals) = (0u64, 0u64);
    run("framing", |random| {
        let sample = samples[random.below(samples.len())];
        let bytes = random.mutate(sample, words);
        let (wanted, fault) = bodies(&bytes, LIMIT);
        let (found, refused) = runtime.block_on(read(&bytes, random));
        // hyper may stop earlier, for a request that wants to be the last.
        assert!(
            wanted.starts_with(&found),
            "{found:?}, not {wanted:?}: {:?}",
            bytes.escape_ascii().to_string()
        );
        assert!(fault.is_some() || !refused, "{:?}", bytes.escape_ascii().to_string());
        alike += u64::from(found == wanted && !found.is_empty());
        refusals += u64::from(refused);
    });
    assert!(alike > 0 && refusals > 0, "{alike} alike, {refusals} refused");
}
