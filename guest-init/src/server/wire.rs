//! Frames on a socket: an inbox that is filled as bytes arrive and an outbox
//! that is drained as the host reads, so that neither side can make the other
//! hold more than a bounded amount.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use berth_guest_protocol::{
    FrameError, HEADER, Header, Hello, Kind, MAX_DATA, Message, Opened, Refused, Reply, Speaks, Version,
    decode, encode, header, parse_header,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown},
};

use crate::error::{Context, Error, Result};

/// How much is asked of the kernel at once.
const CHUNK: usize = HEADER + MAX_DATA;
/// Above this much unsent, nothing more is read for the host.
const OUTBOX_FULL: usize = 2 * CHUNK;

#[derive(Debug)]
pub struct Wire {
    socket: Arc<OwnedFd>,
    inbox: Queue,
    outbox: Queue,
    replied: bool,
    /// What the host has said that it speaks, as far as this end does.
    version: Version,
}

/// Bytes that leave at the front. The buffer stays initialised, so that reading
/// into it costs no clearing.
#[derive(Debug, Default)]
pub struct Queue {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// What a transfer that must not block came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    Some(usize),
    /// Not now.
    Blocked,
    /// Never again.
    Ended,
}

impl Queue {
    pub fn as_slice(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if let Some(place) = self.room(bytes.len()).get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
            self.end += bytes.len();
        }
    }

    pub fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            // One large frame must not keep its memory for a stream's life.
            if self.buffer.len() > 4 * CHUNK {
                self.buffer = Vec::new();
            }
        }
    }

    /// At least `count` bytes behind the end.
    fn room(&mut self, count: usize) -> &mut [u8] {
        if self.buffer.len() - self.end < count && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buffer.len() - self.end < count {
            self.buffer.resize(self.end + count, 0);
        }
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    /// Reads up to `limit` bytes onto the end.
    fn read_with(
        &mut self,
        limit: usize,
        read: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
    ) -> rustix::io::Result<usize> {
        let count = read(self.room(limit).get_mut(..limit).unwrap_or_default())?;
        self.end += count.min(limit);
        Ok(count)
    }

    /// Takes back the last `count` bytes.
    fn retract(&mut self, count: usize) {
        self.end = self.end.saturating_sub(count).max(self.start);
    }

    fn last_mut(&mut self, count: usize) -> &mut [u8] {
        self.buffer.get_mut(self.end.saturating_sub(count)..self.end).unwrap_or_default()
    }
}

impl Wire {
    pub fn new(socket: Arc<OwnedFd>) -> Self {
        let version = Version::ONE;
        Self { socket, inbox: Queue::default(), outbox: Queue::default(), replied: false, version }
    }

    /// Settles on the version, and says ours to a host that waits to hear it. It leaves
    /// with the reply.
    pub fn greet(&mut self, speaks: Speaks) -> Result<()> {
        self.version = Version::OURS.settle(speaks.version());
        if speaks.wants_hello() { self.push(&Hello { version: Version::OURS }) } else { Ok(()) }
    }

    /// A message that has arrived.
    pub fn decode<M: Message>(&self, payload: &[u8]) -> Result<M> {
        decode(self.version, payload).map_err(|_| unexpected(M::KIND))
    }

    /// Waits for the first frame, and not for ever.
    pub fn receive_within(&mut self, limit: Duration) -> Result<(Kind, Vec<u8>)> {
        let deadline = std::time::Instant::now() + limit;
        while self.next_frame()?.is_none() {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() || !readable(&self.socket, left) {
                return Err(io::Error::from(io::ErrorKind::TimedOut)).during("await", "a frame");
            }
            if self.fill() == Moved::Ended {
                break;
            }
        }
        self.receive()
    }

    /// Waits for one frame.
    pub fn receive(&mut self) -> Result<(Kind, Vec<u8>)> {
        loop {
            if let Some((kind, payload)) = self.next_frame()? {
                let frame = (kind, payload.to_vec());
                self.consume_frame();
                return Ok(frame);
            }
            match self.inbox.read_with(CHUNK, |buffer| recv_bytes(&self.socket, buffer, RecvFlags::empty())) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)).during("read", "a frame"),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).during("read", "a frame"),
            }
        }
    }

    /// Sends one message and waits until the kernel has it.
    pub fn send<M: Message>(&mut self, message: &M) -> Result<()> {
        self.push(message)?;
        self.flush()
    }

    pub fn reply(&mut self, opened: Opened) -> Result<()> {
        self.replied = true;
        self.send(&Reply::Ok(opened))
    }

    /// The same for a stream of requests, of which some may be there already.
    pub fn reply_soon(&mut self, opened: Opened) -> Result<()> {
        self.replied = true;
        self.push(&Reply::Ok(opened))?;
        self.settle()
    }

    /// Sends what waits, unless the host has asked for more already: it hears of all
    /// of that at once.
    pub fn settle(&mut self) -> Result<()> {
        if self.next_frame()?.is_some() && self.has_room() { Ok(()) } else { self.flush() }
    }

    /// Refuses what was asked, unless it was already granted.
    pub fn refuse(&mut self, refused: Refused) -> Result<()> {
        if self.replied {
            return Ok(());
        }
        self.send(&Reply::Err(refused))?;
        self.finish();
        Ok(())
    }

    /// The frame at the front of the inbox, when all of it is there.
    pub fn next_frame(&self) -> Result<Option<(Kind, &[u8])>> {
        let Some((head, rest)) = self.inbox.as_slice().split_first_chunk::<HEADER>() else { return Ok(None) };
        let Header { kind, length } = parse_header(*head).map_err(invalid).during("read", "a frame")?;
        Ok(rest.get(..length).map(|payload| (kind, payload)))
    }

    pub fn consume_frame(&mut self) {
        if let Ok(Some((_, payload))) = self.next_frame() {
            let length = HEADER + payload.len();
            self.inbox.consume(length);
        }
    }

    /// Bytes that arrived behind the opening, for a stream that turns raw.
    pub fn take_inbox(&mut self) -> Vec<u8> {
        let bytes = self.inbox.as_slice().to_vec();
        self.inbox.consume(bytes.len());
        bytes
    }

    /// Reads what is there, without waiting.
    pub fn fill(&mut self) -> Moved {
        let read =
            self.inbox.read_with(CHUNK, |buffer| recv_bytes(&self.socket, buffer, RecvFlags::DONTWAIT));
        match read {
            Ok(0) => Moved::Ended,
            Ok(count) => Moved::Some(count),
            Err(Errno::AGAIN | Errno::INTR) => Moved::Blocked,
            Err(_) => Moved::Ended,
        }
    }

    pub fn push<M: Message>(&mut self, message: &M) -> Result<()> {
        let frame = encode(self.version, message).map_err(invalid).during("encode", "a frame")?;
        self.outbox.push(&frame);
        Ok(())
    }

    pub fn push_empty(&mut self, kind: Kind) {
        self.outbox.push(&header(kind, 0));
    }

    pub fn push_data(&mut self, kind: Kind, data: &[u8]) {
        for chunk in data.chunks(MAX_DATA) {
            self.outbox.push(&header(kind, chunk.len()));
            self.outbox.push(chunk);
        }
    }

    /// Reads from `source` straight into a frame of the outbox.
    pub fn push_from(&mut self, kind: Kind, source: BorrowedFd<'_>) -> Moved {
        self.outbox.push(&header(kind, 0));
        match self.outbox.read_with(MAX_DATA, |buffer| rustix::io::read(source, buffer)) {
            Ok(count) if count > 0 => {
                if let Some(place) = self.outbox.last_mut(HEADER + count).first_chunk_mut::<HEADER>() {
                    *place = header(kind, count);
                }
                Moved::Some(count)
            }
            nothing => {
                self.outbox.retract(HEADER);
                match nothing {
                    Err(Errno::AGAIN | Errno::INTR) => Moved::Blocked,
                    // A terminal whose last user left says EIO.
                    _ => Moved::Ended,
                }
            }
        }
    }

    /// Sends what the host will take, without waiting. False: it is gone.
    pub fn drain(&mut self) -> bool {
        while !self.outbox.is_empty() {
            match send(&self.socket, self.outbox.as_slice(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => self.outbox.consume(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    pub fn wants_out(&self) -> bool {
        !self.outbox.is_empty()
    }

    pub fn has_room(&self) -> bool {
        self.outbox.len() < OUTBOX_FULL
    }

    /// Waits until all of the outbox is sent.
    pub fn flush(&mut self) -> Result<()> {
        while !self.outbox.is_empty() {
            match send(&self.socket, self.outbox.as_slice(), SendFlags::NOSIGNAL) {
                Ok(count) => self.outbox.consume(count),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).during("write", "a frame"),
            }
        }
        Ok(())
    }

    /// Ends the stream so that all of what was sent arrives: closing a socket
    /// with unread input would reset the connection and lose it. So the host is
    /// heard out until it closes too, within reason.
    pub fn finish(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(10);
        if self.flush().is_err() || shutdown(&self.socket, Shutdown::Write).is_err() {
            return;
        }
        let mut waste = vec![0; 16 * 1024];
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() || !readable(&self.socket, left) {
                return;
            }
            match recv_bytes(&self.socket, &mut waste, RecvFlags::DONTWAIT) {
                Ok(0) => return,
                Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn recv_bytes(socket: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> rustix::io::Result<usize> {
    recv(socket, buffer, flags).map(|(_, count)| count)
}

fn readable(socket: &OwnedFd, within: Duration) -> bool {
    let Ok(timeout) = within.try_into() else { return false };
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&timeout)), Ok(1..) | Err(Errno::INTR))
}

fn invalid(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// For streams that end on what does not belong there.
pub fn unexpected(kind: Kind) -> Error {
    Error::new("take", format!("a {kind:?} frame"), io::ErrorKind::InvalidData.into())
}
