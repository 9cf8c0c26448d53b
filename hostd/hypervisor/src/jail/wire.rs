//! What hostd and `berth-jail` say to each other: one message a packet, with the
//! descriptors that it speaks of.

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    ffi::OsString,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
    path::PathBuf,
};

/// The longest message.
const LONGEST: usize = 128 * 1024;
/// The most descriptors that come with one.
const DESCRIPTORS: usize = 32;
/// A program's first descriptor behind the standard ones; the others follow it.
pub const FIRST: RawFd = 64;

/// The first message to the launcher: what a jail's processes see of the host. With it
/// comes the control group that the jail's process is born in, if there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    pub shown: Vec<Shown>,
}

/// A file, a directory or a device of the host that is seen at its own path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    pub path: PathBuf,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A program or a library: read and executed.
    Code,
    /// Only read.
    Data,
    Device,
}

/// What the launcher and the process in the jail answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// From the launcher, which ends: the process in the jail, by its number on the host.
    Born(i32),
    /// From the process in the jail: it waits for its order.
    Ready,
    Failed(String),
}

/// What the process in the jail is to become. With it come, in this order, the network
/// namespace, the trees of `directory` and of each of `files`, the three standard
/// streams, and the descriptors that the program has from [`FIRST`] on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The machine's, seen at its own path: the program's working directory.
    pub directory: PathBuf,
    /// Seen at their own paths, read-only.
    pub files: Vec<PathBuf>,
    /// The user and the group.
    pub uid: u32,
    pub groups: Vec<u32>,
    pub limits: Limits,
    pub program: PathBuf,
    /// The program's name is the first.
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The size of the largest file that it may write.
    pub file_size: u64,
    pub descriptors: u64,
    /// Processes and threads of its user.
    pub threads: u64,
}

pub fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fits = bytes.len() <= LONGEST && descriptors.len() <= DESCRIPTORS;
    if !fits || !(descriptors.is_empty() || beside.push(SendAncillaryMessage::ScmRights(descriptors))) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = loop {
        match sendmsg(socket, &[IoSlice::new(&bytes)], &mut beside, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => break sent?,
        }
    };
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// The next message. `None`: the other end is gone, or has become another program.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // It ended without reading everything.
            Err(Errno::CONNRESET) => return Ok(None),
            received => break received?.bytes,
        }
    };
    if received == 0 {
        return Ok(None);
    }
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let message = bytes.get(..received).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((serde_json::from_slice(message)?, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::{fs::File, os::fd::AsFd as _};

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let order = Order {
            directory: "/pool/a b".into(),
            files: vec!["/image/kernel".into()],
            uid: 700_001,
            groups: vec![104],
            limits: Limits { file_size: 1 << 40, descriptors: 1024, threads: 512 },
            program: "/usr/bin/true".into(),
            arguments: ["qemu", "", "-name", "x"].map(OsString::from).into(),
            environment: vec![("PATH".into(), "/bin".into())],
        };
        let null = File::open("/dev/null").unwrap();
        send(one.as_fd(), &order, &[null.as_fd(), null.as_fd()]).unwrap();
        let (received, descriptors) = receive::<Order>(other.as_fd()).unwrap().unwrap();
        assert_eq!((received, descriptors.len()), (order, 2));
        send(one.as_fd(), &Answer::Ready, &[]).unwrap();
        assert!(receive::<Order>(other.as_fd()).is_err(), "an answer passed for an order");
        drop(one);
        assert!(receive::<Answer>(other.as_fd()).unwrap().is_none());
    }
}
