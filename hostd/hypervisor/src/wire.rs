//! A control connection: bytes, and now and then descriptors beside them. A
//! hypervisor may open nothing that its user may not, so files and taps are opened by
//! hostd and handed over. What it says is limited in length and in number, for it is
//! the least trusted process of the host and hostd serves all machines.

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::{
    io::{self, IoSlice},
    os::fd::{AsRawFd, OwnedFd},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::unix::OwnedWriteHalf,
    time::{Duration, Instant},
};

/// The longest line: QEMU's longest answers have some hundred bytes.
pub(crate) const LINE_MAX: usize = 64 * 1024;

/// The receiving half: fails at a line that is too long, before anybody has kept it.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    half: R,
    /// Bytes of the line that has no end yet.
    line: usize,
}

impl<R> Lines<R> {
    pub(crate) fn new(half: R) -> Self {
        Self { half, line: 0 }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Lines<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.half).poll_read(cx, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        this.line = match read.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => read.len() - end - 1,
            None => this.line + read.len(),
        };
        if this.line > LINE_MAX {
            let error = format!("the hypervisor sent a line of more than {LINE_MAX} bytes");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        Poll::Ready(Ok(()))
    }
}

/// How many messages a hypervisor may send of its own accord; further ones wait for the
/// next second. Guests cause some of them, such as QEMU's for each failed disk request.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Instant,
    left: u32,
}

impl Pace {
    pub(crate) const SECOND: Duration = Duration::from_secs(1);
    const MESSAGES: u32 = 4096;

    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), left: Self::MESSAGES }
    }

    /// Before one more message is looked at.
    pub(crate) async fn spend(&mut self) {
        if self.left == 0 {
            tokio::time::sleep_until(self.since + Self::SECOND).await;
        }
        if self.since.elapsed() >= Self::SECOND {
            *self = Self::new();
        }
        self.left = self.left.saturating_sub(1);
    }
}

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

/// For scripted hypervisors: this time has passed, for whoever waits on this thread.
#[cfg(test)]
pub(crate) async fn expire(limit: Duration) {
    tokio::time::pause();
    tokio::time::advance(limit + Pace::SECOND).await;
    tokio::time::resume();
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn many_lines_pass_and_a_long_one_does_not() {
        let line = [vec![b'a'; LINE_MAX], vec![b'\n']].concat();
        let (mut passed, many) = (Vec::new(), line.repeat(3));
        Lines::new(many.as_slice()).read_to_end(&mut passed).await.unwrap();
        assert_eq!(passed, many);
        let (mut passed, long) = (Vec::new(), vec![b'a'; 10 * LINE_MAX]);
        let read = Lines::new(long.as_slice()).take(20 * LINE_MAX as u64).read_to_end(&mut passed).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(passed.len() <= 2 * LINE_MAX, "{} bytes were kept", passed.len());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_too_often_waits_for_the_next_second() {
        let (begun, mut pace) = (Instant::now(), Pace::new());
        for _ in 0..Pace::MESSAGES {
            pace.spend().await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        for _ in 0..2 * Pace::MESSAGES {
            pace.spend().await;
        }
        assert_eq!(begun.elapsed(), 2 * Pace::SECOND);
    }
}
