//! Sees HTTP/2 refuse a guest.
//!
//! Streams and connections that break the protocol's rules are ended below
//! anything that could note it. What is sent to the guest shows it: a reset or a
//! farewell with an error. The frames going out are trustworthy; they are ours.

use super::{head::Fault, session::Session};
use crate::bridge::replay::Replay;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

/// Length, type, flags, stream.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const GO_AWAY: u8 = 7;
/// Status 431 and no other header, as it is packed when it is the first of its
/// kind: what a stream with too many headers is answered below us.
const TOO_LARGE: &[u8] = &[0x48, 0x83, 0x69, 0x90, 0xff];

/// Follows frames to the errors that they tell of.
#[derive(Debug, Default)]
struct Frames {
    /// Of the frame under way, as far as it matters.
    start: Vec<u8>,
    /// Of its payload, and no matter.
    left: usize,
}

impl Frames {
    fn push(&mut self, mut bytes: &[u8]) -> Option<Fault> {
        let mut found = None;
        while !bytes.is_empty() {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            let (_, rest) = bytes.split_at(skipped);
            let (taken, rest) = rest.split_at(rest.len().min(self.matters() - self.start.len()));
            self.start.extend_from_slice(taken);
            bytes = rest;
            let matters = self.matters();
            let [a, b, c, ..] = *self.start else { continue };
            if self.start.len() == matters {
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                self.left = (HEAD + length).saturating_sub(matters);
                found = found.or_else(|| fault(&self.start));
                self.start.clear();
            }
        }
        found
    }

    /// How much of the frame has to be seen.
    fn matters(&self) -> usize {
        match self.start.get(3) {
            Some(&HEADERS) if self.start.len() >= HEAD && self.start.starts_with(&[0, 0, 5]) => HEAD + 5,
            Some(&RESET) if self.start.len() >= HEAD => HEAD + 4,
            Some(&GO_AWAY) if self.start.len() >= HEAD => HEAD + 8,
            _ => HEAD,
        }
    }
}

fn fault(start: &[u8]) -> Option<Fault> {
    let (head, rest) = start.split_at_checked(HEAD)?;
    if head.get(3) == Some(&HEADERS) {
        return (rest == TOO_LARGE).then_some("the head of the request is too large");
    }
    match rest.last()? {
        1 => Some("the request breaks the rules of HTTP/2"),
        3 => Some("the guest overruns its window of HTTP/2"),
        6 => Some("a frame of HTTP/2 has an impossible size"),
        9 => Some("the headers of HTTP/2 cannot be unpacked"),
        11 => Some("the guest overdoes it with HTTP/2"),
        _ => None,
    }
}

/// A guest's connection, on which refusals are reported, one at most.
pub struct Frank {
    stream: TlsStream<Replay>,
    frames: Option<Frames>,
    session: Arc<Session>,
}

impl Frank {
    pub fn new(stream: TlsStream<Replay>, session: Arc<Session>) -> Self {
        Self { stream, frames: Some(Frames::default()), session }
    }

    /// So many bytes, in these pieces, went out.
    fn sent<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>, mut count: usize) {
        for piece in pieces {
            let piece = piece.get(..count).unwrap_or(piece);
            count -= piece.len();
            if let Some(fault) = self.frames.as_mut().and_then(|frames| frames.push(piece)) {
                self.frames = None;
                self.session.report_fault(fault);
            }
        }
    }
}

impl AsyncRead for Frank {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Frank {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.sent([bytes], written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?;
        self.sent(slices.iter().map(|slice| &**slice), written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn errors_are_found_in_any_pieces() {
        let data = frame(0, &[3; 100]);
        let farewell = frame(GO_AWAY, &[0, 0, 0, 1, 0, 0, 0, 11, b'c', b'a', b'l', b'm']);
        for (frames, wanted) in [
            (vec![&frame(4, &[]), &data, &frame(RESET, &[0, 0, 0, 8])], None),
            (
                vec![&data, &frame(RESET, &[0, 0, 0, 1]), &data],
                Some("the request breaks the rules of HTTP/2"),
            ),
            (vec![&frame(4, &[]), &farewell, &data], Some("the guest overdoes it with HTTP/2")),
            (vec![&frame(GO_AWAY, &[0; 8]), &data], None),
            (vec![&frame(HEADERS, TOO_LARGE), &data], Some("the head of the request is too large")),
            (vec![&frame(HEADERS, &[0x88]), &frame(HEADERS, &[0x88; 5]), &frame(HEADERS, &[1; 20])], None),
        ] {
            let bytes: Vec<u8> = frames.into_iter().flatten().copied().collect();
            for size in 1..=bytes.len() {
                let mut frames = Frames::default();
                let found = bytes.chunks(size).find_map(|piece| frames.push(piece));
                assert_eq!(found, wanted, "in pieces of {size}");
            }
        }
    }
}
