//! The control socket: a length, a count of descriptors, JSON.
//!
//! The frames carry secrets, so their buffers are wiped.

use crate::control::LISTENERS;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};
use tokio::{io::Interest, net::UnixStream};
use zeroize::Zeroizing;

/// A few hundred secrets of the longest kind.
const MAX_FRAME: usize = 32 << 20;
/// What the bridge says: many times a decision with its longest name, rule and reason.
pub const MAX_EVENT: usize = 64 << 10;
const DESCRIPTORS: usize = LISTENERS;

#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the control connection ended")]
    Closed,
    #[error("a control message of {0} bytes")]
    TooLong(usize),
    #[error("a control message that does not decode")]
    Malformed(#[from] serde_json::Error),
    #[error("the control connection broke")]
    Io(#[from] io::Error),
}

pub fn halves(stream: UnixStream) -> (Sender, Receiver) {
    let stream = Arc::new(stream);
    (Sender { stream: stream.clone() }, Receiver { stream, most: MAX_FRAME })
}

#[derive(Debug)]
pub struct Sender {
    stream: Arc<UnixStream>,
}

#[derive(Debug)]
pub struct Receiver {
    stream: Arc<UnixStream>,
    /// Bytes of a frame.
    most: usize,
}

impl Sender {
    /// Not safe to cancel: half a frame ends the connection's meaning.
    pub async fn send<T: Serialize>(
        &mut self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let mut frames = Zeroizing::default();
        append(&mut frames, message)?;
        self.write(&frames, descriptors).await
    }

    /// Many at once, in as few calls of the kernel as it takes.
    pub async fn send_all<T: Serialize>(&mut self, messages: &[T]) -> Result<(), ChannelError> {
        let mut frames = Zeroizing::default();
        messages.iter().try_for_each(|message| append(&mut frames, message))?;
        self.write(&frames, &[]).await
    }

    /// The descriptors travel with the first byte that goes out.
    async fn write(&self, mut rest: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        let mut descriptors = descriptors;
        while !rest.is_empty() {
            let stream = &self.stream;
            let sent = stream
                .async_io(Interest::WRITABLE, || {
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
                    let mut ancillary = SendAncillaryBuffer::new(&mut space);
                    if !descriptors.is_empty()
                        && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
                    {
                        return Err(io::ErrorKind::InvalidInput.into());
                    }
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    Ok(sendmsg(stream.as_fd(), &[IoSlice::new(rest)], &mut ancillary, flags)?)
                })
                .await?;
            rest = rest.get(sent..).unwrap_or_default();
            descriptors = &[];
        }
        Ok(())
    }
}

/// Grows by one frame. What a growing buffer leaves behind would not be wiped,
/// so there is room for it before it is written.
fn append<T: Serialize>(frames: &mut Zeroizing<Vec<u8>>, message: &T) -> Result<(), ChannelError> {
    let frame = Zeroizing::new(serde_json::to_vec(message)?);
    let length = u32::try_from(frame.len()).ok().filter(|length| *length as usize <= MAX_FRAME);
    let length = length.ok_or(ChannelError::TooLong(frame.len()))?;
    if frames.capacity() - frames.len() < frame.len() + 4 {
        let mut larger = Zeroizing::new(Vec::with_capacity((frames.len() + frame.len() + 4) * 2));
        larger.extend_from_slice(frames);
        *frames = larger;
    }
    frames.extend_from_slice(&length.to_le_bytes());
    frames.extend_from_slice(&frame);
    Ok(())
}

impl Receiver {
    /// For an end that is not trusted: a longer frame is not even waited for.
    pub fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Not safe to cancel either.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>), ChannelError> {
        let mut descriptors = Vec::new();
        let mut header = [0u8; 4];
        self.read(&mut header, &mut descriptors).await?;
        let length = u32::from_le_bytes(header) as usize;
        if length > self.most {
            return Err(ChannelError::TooLong(length));
        }
        let mut frame = Zeroizing::new(vec![0; length]);
        self.read(&mut frame, &mut descriptors).await?;
        Ok((serde_json::from_slice(&frame)?, descriptors))
    }

    async fn read(&self, mut buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<(), ChannelError> {
        while !buffer.is_empty() {
            let stream = &self.stream;
            let count = stream
                .async_io(Interest::READABLE, || {
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
                    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
                    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
                    let received =
                        recvmsg(stream.as_fd(), &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)?;
                    for message in ancillary.drain() {
                        if let RecvAncillaryMessage::ScmRights(rights) = message {
                            descriptors.extend(rights);
                        }
                    }
                    Ok(received.bytes)
                })
                .await?;
            if count == 0 {
                return Err(ChannelError::Closed);
            }
            buffer = buffer.get_mut(count..).unwrap_or_default();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[tokio::test]
    async fn messages_and_descriptors_arrive_in_order() {
        let (near, far) = UnixStream::pair().unwrap();
        let ((mut sender, _near), (_far, mut receiver)) = (halves(near), halves(far));
        let pairs: Vec<_> =
            (0..DESCRIPTORS).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).collect();
        let rights: Vec<_> = pairs.iter().map(|(_, far)| far.as_fd()).collect();
        let large = "x".repeat(1 << 20);
        let (_, (text, descriptors)) = tokio::join!(
            async {
                sender.send(&large, &rights).await.unwrap();
                sender.send_all(&["again", "and again"]).await.unwrap();
            },
            async { receiver.receive::<String>().await.unwrap() }
        );
        assert_eq!(text, large);
        for ((mut near, _), far) in pairs.into_iter().zip(descriptors) {
            near.write_all(b"x").unwrap();
            std::fs::File::from(far).read_exact(&mut [0]).unwrap();
        }
        let (text, none) = receiver.receive::<String>().await.unwrap();
        assert_eq!((text.as_str(), none.len()), ("again", 0));
        assert_eq!(receiver.receive::<String>().await.unwrap().0, "and again");
        drop((sender, _near));
        assert!(matches!(receiver.receive::<String>().await, Err(ChannelError::Closed)));
    }
}
