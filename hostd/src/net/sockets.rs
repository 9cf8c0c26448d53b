//! Sockets made inside a machine's namespace.
//!
//! A socket belongs for good to the namespace that its thread was in when it
//! was made, so one thread that walks from namespace to namespace makes them
//! all, and everyone else uses them from wherever they are.

use nix::sched::{CloneFlags, setns};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, mpsc},
};
use tokio::sync::oneshot;

type Wish = (Arc<OwnedFd>, oneshot::Sender<io::Result<OwnedFd>>);

#[derive(Clone, Debug)]
pub struct Sockets(mpsc::Sender<Wish>);

impl Sockets {
    pub fn start() -> io::Result<Self> {
        let (sender, wishes) = mpsc::channel::<Wish>();
        std::thread::Builder::new().name("netns-sockets".into()).spawn(move || {
            for (netns, reply) in wishes {
                let _ = reply.send(make(&netns));
            }
        })?;
        Ok(Self(sender))
    }

    /// An unconnected TCP socket in that namespace.
    pub async fn stream(&self, netns: Arc<OwnedFd>) -> io::Result<OwnedFd> {
        let (reply, answer) = oneshot::channel();
        self.0.send((netns, reply)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        answer.await.map_err(io::Error::other)?
    }
}

fn make(netns: &OwnedFd) -> io::Result<OwnedFd> {
    setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?)
}
