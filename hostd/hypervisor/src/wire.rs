//! The sending half of a control connection: bytes, and now and then
//! descriptors beside them. A hypervisor may open nothing that its user may
//! not, so files and taps are opened by hostd and handed over.

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::{
    io::{self, IoSlice},
    os::fd::{AsRawFd, OwnedFd},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncWrite, Interest},
    net::unix::OwnedWriteHalf,
};

/// Takes the descriptors that leave with the next bytes written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Luggage(Arc<Mutex<Vec<OwnedFd>>>);

impl Luggage {
    pub(crate) fn put(&self, fd: OwnedFd) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(fd);
    }
}

#[derive(Debug)]
pub(crate) struct Writer {
    half: OwnedWriteHalf,
    luggage: Luggage,
}

impl Writer {
    pub(crate) fn new(half: OwnedWriteHalf, luggage: Luggage) -> Self {
        Self { half, luggage }
    }
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut luggage = this.luggage.0.lock().unwrap_or_else(PoisonError::into_inner);
        if luggage.is_empty() {
            drop(luggage);
            return Pin::new(&mut this.half).poll_write(cx, bytes);
        }
        let rights: Vec<_> = luggage.iter().map(AsRawFd::as_raw_fd).collect();
        let stream: &tokio::net::UnixStream = this.half.as_ref();
        loop {
            ready!(stream.poll_write_ready(cx))?;
            let sent = stream.try_io(Interest::WRITABLE, || {
                let message = [ControlMessage::ScmRights(&rights)];
                let bytes = [IoSlice::new(bytes)];
                let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
                Ok(sendmsg::<()>(stream.as_raw_fd(), &bytes, &message, flags, None)?)
            });
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    luggage.clear();
                    return Poll::Ready(sent);
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().half).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().half).poll_shutdown(cx)
    }
}
