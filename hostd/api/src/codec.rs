//! Messages on a unix socket: a length, JSON, and at most one descriptor.

use crate::message::{Call, OtherVersion};
use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recv, recvmsg, sendmsg,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};
use tokio::{io::Interest, net::UnixStream};
use zeroize::Zeroizing;

/// Nobody has to say more than this; `ls` of a thousand machines is half of it.
pub const MAX_MESSAGE: usize = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("the connection ended")]
    Closed,
    #[error("a message of {0} bytes")]
    TooLong(usize),
    #[error("a message that does not decode")]
    Malformed(#[from] serde_json::Error),
    #[error("the connection broke")]
    Io(#[from] io::Error),
}

/// One end of the API's socket.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    descriptor: Option<OwnedFd>,
}

impl Connection {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, received: Vec::new(), descriptor: None }
    }

    /// The user id of the process at the other end, from the kernel.
    pub fn peer_uid(&self) -> io::Result<u32> {
        Ok(self.stream.peer_cred()?.uid())
    }

    /// True if the other end still waits: nothing unasked has arrived.
    pub fn is_idle(&self) -> bool {
        let mut byte = [0u8; 1];
        // Asks the kernel, not tokio: its readiness may be older than the other end's death.
        let peeked = recv(self.stream.as_fd(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(Errno::AGAIN))
    }

    pub async fn send<T: Serialize>(
        &mut self,
        message: &T,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), ConnectionError> {
        // Wiped: it may carry the value of a secret. With room, so that it is not
        // copied about while it grows.
        let mut frame = Zeroizing::new(Vec::with_capacity(8 << 10));
        frame.extend_from_slice(&[0; 4]);
        serde_json::to_writer(&mut *frame, message)?;
        let length = frame.len() - 4;
        if length > MAX_MESSAGE {
            return Err(ConnectionError::TooLong(length));
        }
        if let Some(place) = frame.first_chunk_mut::<4>() {
            *place = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        }
        // The descriptor travels with the first byte that goes out.
        let mut rest: &[u8] = &frame;
        let mut descriptor = descriptor;
        while !rest.is_empty() {
            let sent = self
                .stream
                .async_io(Interest::WRITABLE, || send_some(&self.stream, rest, descriptor))
                .await?;
            rest = rest.get(sent..).unwrap_or_default();
            descriptor = None;
        }
        Ok(())
    }

    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, Option<OwnedFd>), ConnectionError> {
        let frame = self.frame().await?;
        let message = serde_json::from_slice(frame.get(4..).unwrap_or_default())?;
        Ok((message, self.descriptor.take()))
    }

    /// A call, or the version of one that is another's: its request is not read then.
    pub async fn receive_call(&mut self) -> Result<Result<Call, OtherVersion>, ConnectionError> {
        let frame = self.frame().await?;
        // No call brings one.
        self.descriptor = None;
        Ok(Call::parse(frame.get(4..).unwrap_or_default())?)
    }

    /// A message with its length before it.
    async fn frame(&mut self) -> Result<Zeroizing<Vec<u8>>, ConnectionError> {
        let length = loop {
            if let Some(prefix) = self.received.first_chunk::<4>() {
                break u32::from_le_bytes(*prefix) as usize;
            }
            self.fill().await?;
        };
        if length > MAX_MESSAGE {
            return Err(ConnectionError::TooLong(length));
        }
        while self.received.len() < length + 4 {
            self.fill().await?;
        }
        let rest = self.received.split_off(length + 4);
        Ok(Zeroizing::new(std::mem::replace(&mut self.received, rest)))
    }

    async fn fill(&mut self) -> Result<(), ConnectionError> {
        let mut buffer = [0u8; 16 * 1024];
        let (count, descriptor) =
            self.stream.async_io(Interest::READABLE, || receive_some(&self.stream, &mut buffer)).await?;
        if count == 0 {
            return Err(ConnectionError::Closed);
        }
        self.received.extend_from_slice(buffer.get(..count).unwrap_or_default());
        if descriptor.is_some() {
            self.descriptor = descriptor;
        }
        Ok(())
    }
}

fn send_some(stream: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    again(sendmsg(
        stream.as_fd(),
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    ))
}

fn receive_some(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = again(recvmsg(stream.as_fd(), &mut [IoSliceMut::new(buffer)], &mut ancillary, flags))?;
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last().or(descriptor);
        }
    }
    Ok((received.bytes, descriptor))
}

/// `async_io` waits again when it is told that the kernel would block.
fn again<T>(result: rustix::io::Result<T>) -> io::Result<T> {
    result.map_err(|error| match error {
        Errno::INTR => io::Error::from(io::ErrorKind::WouldBlock),
        other => other.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, Request};
    use std::io::{Read, Write};

    #[tokio::test]
    async fn a_message_and_a_descriptor_arrive() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut left, mut right) = (Connection::new(left), Connection::new(right));
        let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        left.send(&"hello", Some(far.as_fd())).await.unwrap();
        left.send(&"again", None).await.unwrap();
        let (text, descriptor) = right.receive::<String>().await.unwrap();
        assert_eq!(text, "hello");
        near.write_all(b"x").unwrap();
        let mut byte = [0];
        std::fs::File::from(descriptor.unwrap()).read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        let (text, descriptor) = right.receive::<String>().await.unwrap();
        assert_eq!((text.as_str(), descriptor.is_none()), ("again", true));
        assert!(right.is_idle());
        drop(left);
        assert!(!right.is_idle());
        assert!(matches!(right.receive::<String>().await, Err(ConnectionError::Closed)));
    }

    #[tokio::test]
    async fn a_call_of_another_version_is_told_from_one_that_does_not_decode() {
        let received = async |text: &str| {
            let (left, right) = UnixStream::pair().unwrap();
            let (mut left, mut right) = (Connection::new(left), Connection::new(right));
            left.send(&serde_json::from_str::<serde_json::Value>(text).unwrap(), None).await.unwrap();
            right.receive_call().await
        };
        let ready = Call::new(Caller::Operator, Request::Ready);
        let sent = serde_json::to_string(&ready).unwrap();
        assert_eq!(received(&sent).await.unwrap(), Ok(ready));
        // As a gateway says it that has no format versions yet.
        let older = r#"{"generation":2,"caller":"operator","request":{"do":"ready"}}"#;
        assert_eq!(received(older).await.unwrap().unwrap().request, Request::Ready);
        for (version, text) in [
            (99, r#"{"format_version":99,"caller":{"robot":1},"request":{"do":"fly"}}"#),
            (1, r#"{"generation":1,"caller":"operator","request":{"do":"ready"}}"#),
            (1, r#"{"caller":"operator","request":{"do":"ready"}}"#),
        ] {
            assert_eq!(received(text).await.unwrap(), Err(OtherVersion(version)), "{text}");
        }
        for text in [r#"{"format_version":2,"caller":"operator","request":{"do":"fly"}}"#, "7"] {
            let refused = received(text).await;
            assert!(matches!(refused, Err(ConnectionError::Malformed(_))), "{text}: {refused:?}");
        }
    }

    #[tokio::test]
    async fn a_large_message_arrives_whole_and_a_huge_one_is_refused() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut left, mut right) = (Connection::new(left), Connection::new(right));
        let large = "x".repeat(1 << 20);
        let sent = large.clone();
        let sender = tokio::spawn(async move {
            left.send(&sent, None).await.unwrap();
            left
        });
        assert_eq!(right.receive::<String>().await.unwrap().0, large);
        let mut left = sender.await.unwrap();
        let huge = "x".repeat(MAX_MESSAGE + 1);
        assert!(matches!(left.send(&huge, None).await, Err(ConnectionError::TooLong(_))));
    }
}
