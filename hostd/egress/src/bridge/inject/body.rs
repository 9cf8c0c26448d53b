//! Bodies on their way, counted, and searched where a secret may come back.

use super::{
    budget::Taken,
    messages::Messages,
    scrub::{Finder, Stream},
};
use crate::{bridge::report::Reporter, control::Decision};
use bytes::{Buf, Bytes, BytesMut};
use flate2::write::MultiGzDecoder;
use http_body_util::Full;
use hyper::{
    HeaderMap,
    body::{Body, Frame, Incoming, SizeHint},
    header::HeaderValue,
};
use std::{
    io::Write,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// What goes to the server.
pub enum Upload {
    Stream(Incoming, Arc<AtomicU64>),
    /// Placeholders become values on the way.
    Replaced(Box<Replaced>),
    /// With the memory that it has.
    Whole {
        body: Full<Bytes>,
        _memory: [Taken; 2],
    },
}

pub struct Replaced {
    incoming: Incoming,
    stream: Stream,
    /// Bytes that wait: little at a time, for they may become much.
    waiting: Bytes,
    count: Arc<AtomicU64>,
}

impl Replaced {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            while !self.waiting.is_empty() {
                let step = self.waiting.split_to(self.waiting.len().min(REPLACED_STEP));
                let passed = self.stream.push(step);
                if !passed.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(passed))));
                }
            }
            let Some(frame) = ready!(Pin::new(&mut self.incoming).poll_frame(cx)) else {
                let rest = self.stream.finish();
                return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
            };
            // A length is known, so there are no trailers.
            if let Ok(data) = frame?.into_data() {
                self.count.fetch_add(data.len() as u64, Ordering::Relaxed);
                self.waiting = data;
            }
        }
    }
}

impl Upload {
    pub fn replaced(incoming: Incoming, stream: Stream, count: Arc<AtomicU64>) -> Self {
        Self::Replaced(Box::new(Replaced { incoming, stream, waiting: Bytes::new(), count }))
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Stream(incoming, count) => {
                let frame = ready!(Pin::new(incoming).poll_frame(cx));
                if let Some(Ok(frame)) = &frame {
                    count.fetch_add(length(frame), Ordering::Relaxed);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Self::Replaced(replaced) => replaced.poll(cx),
            Self::Whole { body: whole, .. } => Pin::new(whole).poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Stream(incoming, _) => incoming.is_end_stream(),
            Self::Replaced(..) => false,
            Self::Whole { body: whole, .. } => whole.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Stream(incoming, _) => incoming.size_hint(),
            Self::Replaced(..) => SizeHint::default(),
            Self::Whole { body: whole, .. } => whole.size_hint(),
        }
    }
}

fn length(frame: &Frame<Bytes>) -> u64 {
    frame.data_ref().map_or(0, |data| data.len() as u64)
}

/// What goes to the guest.
pub enum Download {
    /// The bridge's own words.
    Own(Full<Bytes>),
    Server(Box<FromServer>),
}

pub struct FromServer {
    incoming: Incoming,
    scrub: Option<Scrub>,
    /// Trailers that have to wait for the end of the body.
    late: Option<HeaderMap>,
    /// The server has nothing more to say.
    finished: bool,
    line: Line,
}

const SCRUBBED: &str = "the answer had the secret in it, which was taken out";

/// The decision's line, written when the body ended or was given up.
pub struct Line {
    pub decision: Option<Decision>,
    pub up: Arc<AtomicU64>,
    pub down: u64,
    pub reporter: Reporter,
}

impl Line {
    pub fn forget(&mut self) {
        self.decision = None;
    }

    /// A value came back and went no further. Said once, however often it came.
    pub fn scrubbed(&mut self) {
        self.say(SCRUBBED);
    }

    /// The first reason that there is.
    pub fn say(&mut self, reason: &str) {
        if let Some(decision) = self.decision.as_mut().filter(|decision| decision.reason.is_empty()) {
            decision.reason = reason.to_owned();
        }
    }

    pub fn moved(&mut self, up: u64, down: u64) {
        self.up.store(up, Ordering::Relaxed);
        self.down = down;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(mut decision) = self.decision.take() {
            decision.up = self.up.load(Ordering::Relaxed);
            decision.down = self.down;
            self.reporter.decided(decision);
        }
    }
}

/// How a body is searched.
pub struct Scrub {
    stream: Stream,
    /// Whose ends are waited for.
    messages: Option<Messages>,
    finder: Arc<Finder>,
    gunzip: Option<MultiGzDecoder<Vec<u8>>>,
    /// Compressed bytes that wait: little at a time, for they may become much.
    waiting: Bytes,
}

const COMPRESSED_STEP: usize = 2048;
const REPLACED_STEP: usize = 1024;

impl Scrub {
    pub fn new(finder: Arc<Finder>, stream: Stream, gzip: bool, messages: Option<Messages>) -> Self {
        let gunzip = gzip.then(|| MultiGzDecoder::new(Vec::new()));
        Self { stream, messages, finder, gunzip, waiting: Bytes::new() }
    }

    fn data(&mut self, data: Bytes) -> Result<Bytes, BodyError> {
        let Some(gunzip) = &mut self.gunzip else { return Ok(self.search(data)) };
        self.waiting = data;
        let step = self.waiting.split_to(self.waiting.len().min(COMPRESSED_STEP));
        gunzip.write_all(&step)?;
        let plain = std::mem::take(gunzip.get_mut());
        Ok(self.stream.push(plain.into()))
    }

    fn search(&mut self, data: Bytes) -> Bytes {
        let Some(messages) = &mut self.messages else { return self.stream.push(data) };
        let mut output = BytesMut::with_capacity(data.len());
        let mut rest = &*data;
        while let Some((part, is_end)) = messages.next(&mut rest) {
            output.extend_from_slice(&self.stream.push(data.slice_ref(part)));
            if is_end {
                output.extend_from_slice(&self.stream.finish());
            }
        }
        output.freeze()
    }

    fn end(&mut self) -> Result<Bytes, BodyError> {
        let mut output = BytesMut::new();
        if let Some(gunzip) = &mut self.gunzip {
            gunzip.try_finish()?;
            let plain = std::mem::take(gunzip.get_mut());
            output.extend_from_slice(&self.stream.push(plain.into()));
        }
        output.extend_from_slice(&self.stream.finish());
        Ok(output.freeze())
    }

    fn has_replaced(&self) -> bool {
        self.stream.replaced() > 0
    }
}

pub fn scrub_headers(headers: &mut HeaderMap, finder: &Finder, line: &mut Line) {
    let told: Vec<_> = headers.keys().filter(|name| finder.is_in_name(name.as_str())).cloned().collect();
    for name in told {
        headers.remove(name);
        line.scrubbed();
    }
    for value in headers.values_mut() {
        if let Some(replaced) = finder.replace(value.as_bytes()) {
            *value = HeaderValue::from_bytes(&replaced).unwrap_or(HeaderValue::from_static(""));
            line.scrubbed();
        }
    }
}

impl Download {
    pub fn server(incoming: Incoming, scrub: Option<Scrub>, line: Line) -> Self {
        Self::Server(Box::new(FromServer { incoming, scrub, late: None, finished: false, line }))
    }
}

impl FromServer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(scrub) = &mut self.scrub else {
                let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
                return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
            };
            if scrub.waiting.has_remaining() {
                let waiting = std::mem::take(&mut scrub.waiting);
                let output = scrub.data(waiting)?;
                if !output.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(output))));
                }
                continue;
            }
            if let Some(mut late) = self.late.take() {
                scrub_headers(&mut late, &scrub.finder, &mut self.line);
                return Poll::Ready(Some(Ok(Frame::trailers(late))));
            }
            if self.finished {
                return Poll::Ready(None);
            }
            let output = match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
                None => {
                    self.finished = true;
                    let rest = scrub.end()?;
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => scrub.data(data)?,
                    Err(frame) => {
                        // Trailers end the body; what was held back goes before them.
                        self.finished = true;
                        self.late = frame.into_trailers().ok();
                        scrub.end()?
                    }
                },
            };
            if !output.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(output))));
            }
        }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Own(own) => Pin::new(own).poll_frame(cx).map_err(|never| match never {}),
            Self::Server(server) => {
                let frame = ready!(server.poll(cx));
                if server.scrub.as_ref().is_some_and(Scrub::has_replaced) {
                    server.line.scrubbed();
                }
                if let Some(Ok(frame)) = &frame {
                    server.line.down += length(frame);
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(own) => own.is_end_stream(),
            Self::Server(server) => server.scrub.is_none() && server.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(own) => own.size_hint(),
            Self::Server(server) if server.scrub.is_none() => server.incoming.size_hint(),
            Self::Server(_) => SizeHint::default(),
        }
    }
}
