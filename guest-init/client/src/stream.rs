//! Opening streams, and messages on them.

use crate::{Frames, GuestError};
use berth_guest_protocol::{
    Hello, Kind, Message, Open, Opened, Opening, Reply, Speaks, Version, decode, encode,
};
use std::time::Duration;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, tcp::OwnedWriteHalf},
    time::timeout,
};

/// A stream that the guest has agreed to.
#[derive(Debug)]
pub struct Stream {
    pub opened: Opened,
    /// The lower one of both ends'.
    pub version: Version,
    pub frames: Frames,
    pub writer: OwnedWriteHalf,
}

/// What is said on a stream before the guest has said anything: what it is for, and
/// messages that need not wait for the answer to that.
#[derive(Debug)]
pub struct Begin {
    speaks: Speaks,
    /// Of what is said.
    version: Version,
    frames: Vec<u8>,
}

impl Begin {
    /// To a guest of which that version was heard before, if any. One that is not known is
    /// spoken to in version 1 until it has answered.
    pub fn new(known: Option<Version>, open: Open) -> Result<Self, GuestError> {
        let speaks = Speaks::to(known);
        let version = match speaks {
            Speaks::OneOrTwo => Version::ONE,
            Speaks::UpTo(ours) => known.map_or(Version::ONE, |theirs| ours.settle(theirs)),
        };
        Ok(Self { speaks, version, frames: Opening { speaks, open }.encode()? })
    }

    pub fn push<M: Message>(&mut self, message: &M) -> Result<(), GuestError> {
        self.frames.extend(encode(self.version, message)?);
        Ok(())
    }

    /// Says all of it at once and waits for the guest's word.
    pub async fn send(self, stream: TcpStream, limit: Duration) -> Result<Stream, GuestError> {
        timeout(limit, self.agree(stream)).await.unwrap_or(Err(GuestError::Silent))
    }

    async fn agree(self, stream: TcpStream) -> Result<Stream, GuestError> {
        let (reader, mut writer) = stream.into_split();
        writer.write_all(&self.frames).await?;
        let mut frames = Frames::new(reader);
        let (mut kind, mut payload) = frames.frame(&[Kind::Hello, Kind::Reply]).await?;
        if kind == Kind::Hello {
            let Hello { version } = decode(Version::OURS, &payload)?;
            // A guest of version 1 has none to say.
            frames.version = Version::OURS.settle(version);
            (kind, payload) = frames.frame(&[Kind::Reply]).await?;
        }
        let version = frames.version;
        let opened = decode::<Reply>(version, &payload)?.map_err(GuestError::Refused)?;
        if version == Version::ONE && self.speaks != Speaks::OneOrTwo {
            // It agreed to what it cannot know.
            return Err(GuestError::Unexpected(kind));
        }
        Ok(Stream { opened, version, frames, writer })
    }
}

/// Says what a new stream is for and waits for the guest's word.
pub async fn open(stream: TcpStream, open: Open, limit: Duration) -> Result<Stream, GuestError> {
    Begin::new(None, open)?.send(stream, limit).await
}

impl Stream {
    pub async fn send<M: Message>(&mut self, message: &M) -> Result<(), GuestError> {
        Ok(self.writer.write_all(&encode(self.version, message)?).await?)
    }

    /// The next frame, which has to be one of these.
    pub async fn receive<M: Message>(&mut self, limit: Duration) -> Result<M, GuestError> {
        timeout(limit, self.frames.message()).await.unwrap_or(Err(GuestError::Silent))
    }
}
