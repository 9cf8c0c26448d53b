//! Bytes both ways between the host and a socket in the guest, until both
//! directions have ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown},
};

use crate::{
    error::{Context, Result},
    server::wire::Wire,
    traffic,
};

const BUFFER: usize = 128 * 1024;

/// One direction.
struct Half {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The source has ended; what is buffered still goes.
    Ending,
    Closed,
}

/// The other end is gone for both directions.
struct Broken;

pub fn run(wire: &mut Wire, socket: &OwnedFd) -> Result<()> {
    let mut down = Half::new(&wire.take_inbox());
    let mut up = Half::new(&[]);
    let host = wire.as_fd();
    let guest = socket.as_fd();
    while down.state != State::Closed || up.state != State::Closed {
        let wanted = [
            (host, down.read_interest() | up.write_interest()),
            (guest, up.read_interest() | down.write_interest()),
        ];
        // A side of which nothing is wanted is left out: its hang-up would be
        // reported again and again.
        let mut fds: Vec<PollFd<'_>> = wanted
            .into_iter()
            .filter(|(_, interest)| !interest.is_empty())
            .map(|(fd, interest)| PollFd::from_borrowed_fd(fd, interest))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).during("wait for", "a forward"),
        }
        if down.advance(host, guest).and_then(|()| up.advance(guest, host)).is_err() {
            break;
        }
    }
    Ok(())
}

impl Half {
    fn new(first: &[u8]) -> Self {
        // Zeroed by the kernel, a page at a time, when first used.
        let mut buffer = vec![0; BUFFER.max(first.len())];
        for (place, &byte) in buffer.iter_mut().zip(first) {
            *place = byte;
        }
        Self { buffer, start: 0, end: first.len(), state: State::Open }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn read_interest(&self) -> PollFlags {
        if self.state == State::Open && self.is_empty() { PollFlags::IN } else { PollFlags::empty() }
    }

    fn write_interest(&self) -> PollFlags {
        if self.is_empty() { PollFlags::empty() } else { PollFlags::OUT }
    }

    /// Moves what can be moved without waiting.
    fn advance(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> std::result::Result<(), Broken> {
        loop {
            while let Some(waiting) = self.buffer.get(self.start..self.end).filter(|b| !b.is_empty()) {
                match send(to, waiting, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    Ok(count) => self.start += count,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(_) => return Err(Broken),
                }
            }
            match self.state {
                State::Closed => return Ok(()),
                State::Ending => {
                    self.state = State::Closed;
                    // The other side may have closed both already.
                    let _ = shutdown(to, Shutdown::Write);
                    return Ok(());
                }
                State::Open => {}
            }
            match recv(from, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((_, 0)) => self.state = State::Ending,
                Ok((_, count)) => {
                    traffic::count(count);
                    (self.start, self.end) = (0, count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    (self.start, self.end) = (0, 0);
                    return Ok(());
                }
                Err(_) => return Err(Broken),
            }
        }
    }
}
