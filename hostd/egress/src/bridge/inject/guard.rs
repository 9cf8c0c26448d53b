//! Looks at requests of HTTP/1 before hyper does.
//!
//! A head passes whole, once it was judged. In place of one that is refused hyper
//! reads a harmless request, whose answer is the refusal: so it comes after the
//! answers to what was asked before. A body that breaks its framing ends there.

use super::{
    framing::{Framing, Step},
    head::Fault,
};
use bytes::{Buf, BytesMut};
use std::{
    future::Future,
    io,
    mem::MaybeUninit,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

const READ: usize = 8 * 1024;
/// A guest that still sends would otherwise see a reset before the refusal.
const LINGER: Duration = Duration::from_secs(2);
const HARMLESS: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";

/// What the guard and those who answer tell each other about one connection.
/// Requests are numbered from one; HTTP/1 has one at a time.
#[derive(Debug, Default)]
pub struct Watch(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    begun: u64,
    answered: u64,
    switched: bool,
    fault: Option<(u64, Fault)>,
    waiting: Option<Waker>,
}

impl Watch {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request comes to those who answer: its number.
    pub fn begin(&self) -> u64 {
        let mut told = self.told();
        told.begun += 1;
        told.begun
    }

    pub fn end(&self, switched: bool) {
        let mut told = self.told();
        told.answered += 1;
        told.switched |= switched;
        if let Some(waiting) = told.waiting.take() {
            waiting.wake();
        }
    }

    /// What is wrong with this request. Said once.
    pub fn fault(&self, number: u64) -> Option<Fault> {
        self.told().fault.take_if(|(of, _)| *of == number).map(|(_, fault)| fault)
    }

    /// What nobody asked about.
    pub fn unsaid(&self) -> Option<Fault> {
        self.told().fault.take().map(|(_, fault)| fault)
    }

    fn poll_answered(&self, cx: &Context<'_>, requests: u64) -> Poll<bool> {
        let mut told = self.told();
        if told.answered >= requests {
            return Poll::Ready(told.switched);
        }
        told.waiting = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[derive(Debug)]
pub struct Guard<S> {
    stream: S,
    framing: Framing,
    watch: Arc<Watch>,
    held: BytesMut,
    /// How many of those held may pass.
    good: usize,
    /// Nothing more is read for hyper.
    refused: bool,
    linger: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + Unpin> Guard<S> {
    pub fn new(stream: S, limit: usize, watch: Arc<Watch>) -> Self {
        let framing = Framing::new(limit);
        Self { stream, framing, watch, held: BytesMut::new(), good: 0, refused: false, linger: None }
    }

    fn refuse(&mut self, fault: Fault, number: u64) {
        self.watch.told().fault = Some((number, fault));
        self.refused = true;
        self.held.clear();
    }

    /// Judges what is held; whether more has to be read first.
    fn judge(&mut self, cx: &Context<'_>) -> Poll<io::Result<bool>> {
        if self.framing.is_waiting() {
            let switched = ready!(self.watch.poll_answered(cx, self.framing.requests()));
            self.framing.answered(switched);
        }
        let (requests, in_head) = (self.framing.requests(), self.framing.is_in_head());
        match self.framing.follow(&self.held) {
            Ok(Step::Pass(count)) => self.good = count,
            Ok(Step::More) => return Poll::Ready(Ok(true)),
            Ok(Step::Wait) => {}
            Err(fault) if in_head => {
                self.refuse(fault, requests + 1);
                self.held.extend_from_slice(HARMLESS);
                self.good = HARMLESS.len();
            }
            Err(fault) => {
                self.refuse(fault, requests);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, fault)));
            }
        }
        Poll::Ready(Ok(false))
    }

    /// Reads on, and holds it; how much came.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut bytes = [MaybeUninit::uninit(); READ];
        let mut buffer = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
        self.held.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Reads until the guest has nothing more to say.
    fn poll_away(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Ok(1..) = ready!(self.poll_more(cx)) {
            self.held.clear();
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.good > 0 {
                let count = this.good.min(buffer.remaining());
                buffer.put_slice(this.held.get(..count).unwrap_or_default());
                this.held.advance(count);
                this.good -= count;
                return Poll::Ready(Ok(()));
            }
            if this.refused {
                // An end would stop hyper before it has answered.
                let _ = this.poll_away(cx);
                return Poll::Pending;
            }
            let unread = this.framing.unread();
            if this.held.is_empty() && unread > 0 {
                let before = buffer.filled().len();
                let mut body = (&mut this.stream).take(unread);
                ready!(Pin::new(&mut body).poll_read(cx, buffer))?;
                this.framing.skip((buffer.filled().len() - before) as u64);
                return Poll::Ready(Ok(()));
            }
            if ready!(this.judge(cx))? && ready!(this.poll_more(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        if this.refused {
            let mut linger = this.linger.take().unwrap_or_else(|| Box::pin(sleep(LINGER)));
            if this.poll_away(cx).is_pending() && linger.as_mut().poll(cx).is_pending() {
                this.linger = Some(linger);
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }
}
