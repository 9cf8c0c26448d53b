//! Sockets made inside a machine's namespace.
//!
//! A socket belongs for good to the namespace that its thread was in when it
//! was made, so one thread that walks from namespace to namespace makes them
//! all, and everyone else uses them from wherever they are.

use super::{Doors, Taps, hangup, namespace};
use nix::sched::{CloneFlags, setns};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, mpsc},
};
use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Clone, Debug)]
pub struct Sockets(mpsc::Sender<(Arc<OwnedFd>, Work)>);

impl Sockets {
    pub fn start() -> io::Result<Self> {
        let (sender, wishes) = mpsc::channel::<(Arc<OwnedFd>, Work)>();
        std::thread::Builder::new().name("netns-sockets".into()).spawn(move || {
            for (netns, work) in wishes {
                // Whoever waits learns from the work's silence.
                if setns(netns.as_fd(), CloneFlags::CLONE_NEWNET).is_ok() {
                    work();
                }
            }
        })?;
        Ok(Self(sender))
    }

    /// An unconnected TCP socket in that namespace.
    pub async fn stream(&self, netns: Arc<OwnedFd>) -> io::Result<OwnedFd> {
        self.inside(netns, || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            Ok(socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?)
        })
        .await
    }

    /// Sockets that see every IP packet on the ctl link and on the user's,
    /// without taking any.
    pub async fn onlookers(&self, netns: Arc<OwnedFd>) -> io::Result<(OwnedFd, OwnedFd)> {
        self.inside(netns, namespace::onlookers).await
    }

    /// Both taps of that namespace.
    pub async fn taps(&self, netns: Arc<OwnedFd>) -> io::Result<Taps> {
        self.inside(netns, namespace::taps).await
    }

    /// The rules of that namespace anew, and the bridge's sockets.
    pub async fn doors(&self, netns: Arc<OwnedFd>) -> io::Result<Doors> {
        self.inside(netns, namespace::guarded_doors).await
    }

    /// Ends every connection to the guest.
    pub async fn hang_up(&self, netns: Arc<OwnedFd>) -> io::Result<usize> {
        self.inside(netns, hangup::everyone).await
    }

    /// How many connections to the guest are open.
    pub async fn connections(&self, netns: Arc<OwnedFd>) -> io::Result<usize> {
        self.inside(netns, || {
            // The fourth field is the state: 1 established, 8 waiting for our close.
            let table = std::fs::read_to_string("/proc/thread-self/net/tcp")?;
            let open = |line: &&str| matches!(line.split_whitespace().nth(3), Some("01" | "08"));
            Ok(table.lines().filter(open).count())
        })
        .await
    }

    async fn inside<T: Send + 'static>(
        &self,
        netns: Arc<OwnedFd>,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (reply, answer) = oneshot::channel();
        let work = Box::new(move || {
            let _ = reply.send(work());
        });
        self.0.send((netns, work)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        answer.await.map_err(io::Error::other)?
    }
}
