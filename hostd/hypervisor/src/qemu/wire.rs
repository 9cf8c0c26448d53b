//! The sending half of a control connection: bytes, and now and then a
//! descriptor beside them. QEMU may open nothing that its user may not, so the
//! file for device state is opened by hostd and handed over.

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

/// Takes the descriptor that leaves with the next bytes written.
#[derive(Clone, Debug, Default)]
pub(super) struct Luggage(Arc<Mutex<Option<OwnedFd>>>);

impl Luggage {
    pub(super) fn put(&self, fd: OwnedFd) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(fd);
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    half: OwnedWriteHalf,
    luggage: Luggage,
}

impl Writer {
    pub(super) fn new(half: OwnedWriteHalf, luggage: Luggage) -> Self {
        Self { half, luggage }
    }
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut luggage = this.luggage.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(fd) = luggage.as_ref().map(AsRawFd::as_raw_fd) else {
            drop(luggage);
            return Pin::new(&mut this.half).poll_write(cx, bytes);
        };
        let stream: &tokio::net::UnixStream = this.half.as_ref();
        loop {
            ready!(stream.poll_write_ready(cx))?;
            let sent = stream.try_io(Interest::WRITABLE, || {
                let rights = [fd];
                let message = [ControlMessage::ScmRights(&rights)];
                let bytes = [IoSlice::new(bytes)];
                let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
                Ok(sendmsg::<()>(stream.as_raw_fd(), &bytes, &message, flags, None)?)
            });
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    *luggage = None;
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
