//! What arrives on a stream.

use crate::GuestError;
use berth_guest_protocol::{Exit, HEADER, Incoming, Kind, Message, Version, decode, parse_header};
use bytes::{Buf, Bytes, BytesMut};
use tokio::{io::AsyncReadExt, net::tcp::OwnedReadHalf};

/// Large enough that a fast guest costs few system calls.
const READ: usize = 256 * 1024;
/// What a quiet stream keeps.
const READ_QUIET: usize = 8 * 1024;

/// What a command sends up.
#[derive(Debug)]
pub enum Output {
    Data(Bytes),
    Errors(Bytes),
    Eof,
    Exit(Exit),
}

/// The reading end of a stream.
#[derive(Debug)]
pub struct Frames {
    stream: OwnedReadHalf,
    pub(crate) version: Version,
    buffer: BytesMut,
    /// Of a data frame whose payload is not all here yet.
    open: Option<(Kind, usize)>,
    /// Doubles while the guest fills it.
    room: usize,
    /// Read at once.
    most: usize,
}

impl Frames {
    pub(crate) fn new(stream: OwnedReadHalf) -> Self {
        let (version, buffer) = (Version::ONE, BytesMut::new());
        Self { stream, version, buffer, open: None, room: READ_QUIET, most: READ }
    }

    /// Reads no more than this at a time.
    pub fn read_ahead(&mut self, most: usize) {
        self.most = most;
    }

    /// What a command sends next. Data is passed on as it arrives, without
    /// waiting for the end of its frame.
    pub async fn output(&mut self) -> Result<Output, GuestError> {
        loop {
            if let Some((kind, left)) = self.open {
                if self.buffer.is_empty() {
                    self.fill().await?;
                }
                let part = self.buffer.split_to(left.min(self.buffer.len())).freeze();
                self.open = (part.len() < left).then(|| (kind, left - part.len()));
                return Ok(if kind == Kind::Data { Output::Data(part) } else { Output::Errors(part) });
            }
            let (kind, length) = self.header().await?;
            match kind {
                Kind::Data | Kind::Errors if length == 0 => {}
                Kind::Data | Kind::Errors => self.open = Some((kind, length)),
                Kind::Eof => return Ok(Output::Eof),
                Kind::Exit => {
                    return Ok(Output::Exit(decode(self.version, &self.payload(length).await?)?));
                }
                other => return Err(GuestError::Unexpected(other)),
            }
        }
    }

    /// The next connection that a listener has.
    pub async fn incoming(&mut self) -> Result<Incoming, GuestError> {
        self.message().await
    }

    /// The next frame, which has to be a message of this kind.
    pub async fn message<M: Message>(&mut self) -> Result<M, GuestError> {
        let (_, payload) = self.frame(&[M::KIND]).await?;
        Ok(decode(self.version, &payload)?)
    }

    /// Raw bytes, for streams that have no frames after their reply.
    pub async fn raw(&mut self) -> Result<Bytes, GuestError> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        Ok(self.buffer.split().freeze())
    }

    /// The next frame. Nothing is kept of one that is of no such kind.
    pub(crate) async fn frame(&mut self, due: &[Kind]) -> Result<(Kind, Bytes), GuestError> {
        let (kind, length) = self.header().await?;
        if !due.contains(&kind) {
            return Err(GuestError::Unexpected(kind));
        }
        Ok((kind, self.payload(length).await?))
    }

    async fn header(&mut self) -> Result<(Kind, usize), GuestError> {
        loop {
            if let Some(bytes) = self.buffer.first_chunk::<HEADER>() {
                let header = parse_header(*bytes)?;
                self.buffer.advance(HEADER);
                return Ok((header.kind, header.length));
            }
            self.fill().await?;
        }
    }

    async fn payload(&mut self, length: usize) -> Result<Bytes, GuestError> {
        while self.buffer.len() < length {
            self.fill().await?;
        }
        Ok(self.buffer.split_to(length).freeze())
    }

    async fn fill(&mut self) -> Result<(), GuestError> {
        self.room = self.room.min(self.most.max(READ_QUIET));
        self.buffer.reserve(self.room);
        let count = self.stream.read_buf(&mut self.buffer).await?;
        if count == 0 {
            return Err(GuestError::Ended);
        }
        self.room = if count >= self.room {
            (self.room * 4).min(self.most.min(READ))
        } else {
            READ_QUIET.max(self.room / 2)
        };
        Ok(())
    }
}
