//! The gateway's end of the guest protocol. What arrives is hostile: whatever
//! does not fit ends the stream with an error, and nothing else.

use berth_guest_protocol as protocol;
use berth_guest_protocol::{Exit, FrameError, HEADER, Incoming, Kind, Open, Opened, Opening, Refused};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, tcp::OwnedReadHalf},
};

/// Large enough that a fast guest costs few system calls.
const READ: usize = 256 * 1024;
/// What a quiet stream keeps.
const READ_QUIET: usize = 8 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error("the machine ended the stream")]
    Ended,
    #[error("the machine broke the protocol: {0}")]
    Frame(#[from] FrameError),
    #[error("the machine broke the protocol: a {0:?} frame out of place")]
    Unexpected(Kind),
    #[error("the stream to the machine broke: {0}")]
    Io(#[from] io::Error),
    #[error("{}", .0.message)]
    Refused(Refused),
}

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
    buffer: BytesMut,
    /// Of a data frame whose payload is not all here yet.
    open: Option<(Kind, usize)>,
    /// Doubles while the guest fills it.
    room: usize,
    /// Read at once.
    most: usize,
}

impl Frames {
    fn new(stream: OwnedReadHalf) -> Self {
        Self { stream, buffer: BytesMut::new(), open: None, room: READ_QUIET, most: READ }
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
                Kind::Exit => return Ok(Output::Exit(protocol::decode(&self.payload(length).await?)?)),
                other => return Err(GuestError::Unexpected(other)),
            }
        }
    }

    /// The next connection that a listener has.
    pub async fn incoming(&mut self) -> Result<Incoming, GuestError> {
        let (kind, length) = self.header().await?;
        match kind {
            Kind::Incoming => Ok(protocol::decode(&self.payload(length).await?)?),
            other => Err(GuestError::Unexpected(other)),
        }
    }

    /// Raw bytes, for streams that have no frames after their reply.
    pub async fn raw(&mut self) -> Result<Bytes, GuestError> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        Ok(self.buffer.split().freeze())
    }

    async fn header(&mut self) -> Result<(Kind, usize), GuestError> {
        loop {
            if let Some(bytes) = self.buffer.first_chunk::<HEADER>() {
                let header = protocol::parse_header(*bytes)?;
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

/// A stream that the guest has agreed to.
#[derive(Debug)]
pub struct Stream {
    pub opened: Opened,
    pub frames: Frames,
    pub writer: tokio::net::tcp::OwnedWriteHalf,
}

/// Says what a new stream is for and waits for the guest's word.
pub async fn open(stream: TcpStream, open: Open) -> Result<Stream, GuestError> {
    let (reader, mut writer) = stream.into_split();
    let opening = Opening { generation: protocol::GENERATION, open };
    writer.write_all(&protocol::encode(Kind::Open, &opening)?).await?;
    let mut frames = Frames::new(reader);
    let (kind, length) = frames.header().await?;
    if kind != Kind::Reply {
        return Err(GuestError::Unexpected(kind));
    }
    let reply: protocol::Reply = protocol::decode(&frames.payload(length).await?)?;
    let opened = reply.map_err(GuestError::Refused)?;
    Ok(Stream { opened, frames, writer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// A stream whose guest answers with these bytes, whatever it is told.
    async fn guest(answer: Vec<u8>) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for piece in answer.chunks(3) {
                stream.write_all(piece).await.unwrap();
            }
            // Read to the end, so that closing does not reset what was sent.
            let _ = stream.shutdown().await;
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        });
        TcpStream::connect(address).await.unwrap()
    }

    fn opened() -> Vec<u8> {
        protocol::encode(Kind::Reply, &protocol::Reply::Ok(Opened::Exec { pid: 1 })).unwrap()
    }

    #[tokio::test]
    async fn output_arrives_in_order_however_it_is_cut() {
        let mut answer = opened();
        answer.extend(protocol::header(Kind::Data, 5));
        answer.extend(b"hello");
        answer.extend(protocol::header(Kind::Errors, 3));
        answer.extend(b"bad");
        answer.extend(protocol::header(Kind::Eof, 0));
        answer.extend(protocol::encode(Kind::Exit, &Exit::Status(7)).unwrap());
        let mut stream = open(guest(answer).await, Open::Control).await.unwrap();
        let (mut data, mut errors) = (Vec::new(), Vec::new());
        let exit = loop {
            match stream.frames.output().await.unwrap() {
                Output::Data(part) => data.extend(part),
                Output::Errors(part) => errors.extend(part),
                Output::Eof => {}
                Output::Exit(exit) => break exit,
            }
        };
        assert_eq!((data.as_slice(), errors.as_slice()), (&b"hello"[..], &b"bad"[..]));
        assert_eq!(exit, Exit::Status(7));
        assert!(matches!(stream.frames.output().await, Err(GuestError::Ended)));
    }

    #[tokio::test]
    async fn garbage_is_an_error() {
        for garbage in [
            vec![255; 64],
            vec![0; 64],
            protocol::encode(Kind::Exit, &Exit::Status(0)).unwrap(),
            protocol::header(Kind::Reply, 60_000).to_vec(),
            Vec::new(),
        ] {
            assert!(open(guest(garbage).await, Open::Control).await.is_err());
        }
        let mut answer = opened();
        answer.extend(protocol::header(Kind::Exit, 2));
        answer.extend([9, 9]);
        let mut stream = open(guest(answer).await, Open::Control).await.unwrap();
        assert!(matches!(stream.frames.output().await, Err(GuestError::Frame(FrameError::Payload))));
    }
}
