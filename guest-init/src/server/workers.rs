//! Threads for streams. Making a thread, ending one, and waking one to give it a
//! stream is a good part of what the first answer after a wake costs where guests
//! are emulated. So a few wait for the next stream themselves, and each serves what
//! it accepts.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
};

use rustix::{
    io::Errno,
    net::{SocketFlags, accept_with},
};

use crate::{
    error::{Error, Result},
    guest,
};

/// Threads that wait at most; a wake needs two or three.
const IDLE: usize = 4;

/// Whether a thread may serve another stream: it may have become the user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    Reusable,
    Spent,
}

type Serve = dyn Fn(OwnedFd) -> Thread + Send + Sync;

pub struct Workers {
    listener: OwnedFd,
    serve: Box<Serve>,
    /// Threads that accept, or are about to. Never none, or nobody is let in.
    waiting: AtomicUsize,
    broken: Sender<Error>,
}

impl Workers {
    /// What comes back tells if nothing can be accepted any more.
    pub fn new(
        listener: OwnedFd,
        serve: impl Fn(OwnedFd) -> Thread + Send + Sync + 'static,
    ) -> (Arc<Self>, Receiver<Error>) {
        let (broken, told) = channel();
        let waiting = AtomicUsize::new(0);
        (Arc::new(Self { listener, serve: Box::new(serve), waiting, broken }), told)
    }

    /// Has one more thread accept.
    pub fn add(self: &Arc<Self>) -> Result<()> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let workers = Arc::clone(self);
        guest::spawn("stream", move || workers.work())
    }

    fn work(self: &Arc<Self>) {
        loop {
            let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(error) if is_passing(error) => continue,
                // Nothing can be accepted until a stream ends, and streams end.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => {
                    std::thread::yield_now();
                    continue;
                }
                Err(error) => {
                    // Whoever wanted to know may have heard it from another thread.
                    let _ = self.broken.send(Error::new("accept", "a stream", error.into()));
                    return;
                }
            };
            if !self.is_replaced() {
                // Without a thread the socket is closed, which the host sees.
                continue;
            }
            if (self.serve)(socket) == Thread::Spent || !self.stays() {
                return;
            }
        }
    }

    /// Sees to it that somebody accepts while the calling thread serves.
    fn is_replaced(self: &Arc<Self>) -> bool {
        // Where no other can be had, it is this one that was added.
        self.waiting.fetch_sub(1, Ordering::Relaxed) > 1 || self.add().is_ok()
    }

    /// Whether there are few enough who wait.
    fn stays(&self) -> bool {
        let stays = |waiting| (waiting < IDLE).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, stays).is_ok()
    }
}

/// What goes wrong with one connection before it is accepted.
fn is_passing(error: Errno) -> bool {
    matches!(
        error,
        Errno::INTR
            | Errno::AGAIN
            | Errno::CONNABORTED
            | Errno::PROTO
            | Errno::NETDOWN
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::PERM
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::HashSet,
        io::Read as _,
        os::{
            linux::net::SocketAddrExt as _,
            unix::net::{SocketAddr, UnixListener, UnixStream},
        },
        sync::atomic::AtomicU32,
        thread::ThreadId,
    };

    static NAMES: AtomicU32 = AtomicU32::new(0);

    /// Each stream tells which thread served it, and is served until it is closed.
    struct Served {
        address: SocketAddr,
        workers: Arc<Workers>,
        threads: Receiver<ThreadId>,
        broken: Receiver<Error>,
    }

    fn serve(thread: Thread) -> Served {
        let name = format!("berth-workers-{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed));
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let (told, threads) = channel();
        let (workers, broken) =
            Workers::new(UnixListener::bind_addr(&address).unwrap().into(), move |socket| {
                let _ = told.send(std::thread::current().id());
                let _ = UnixStream::from(socket).read_to_end(&mut Vec::new());
                thread
            });
        workers.add().unwrap();
        Served { address, workers, threads, broken }
    }

    impl Served {
        fn stream(&self) -> (UnixStream, ThreadId) {
            let stream = UnixStream::connect_addr(&self.address).unwrap();
            (stream, self.threads.recv().unwrap())
        }

        /// A stream is opened, served and closed, and as many wait again.
        fn whole_stream(&self, waiting: usize) -> ThreadId {
            let (_, thread) = self.stream();
            self.until_waiting(waiting);
            thread
        }

        fn until_waiting(&self, wanted: usize) {
            while self.workers.waiting.load(Ordering::Relaxed) != wanted {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_thread_that_is_done_serves_again() {
        let served = serve(Thread::Reusable);
        // The second was added while the first served.
        served.whole_stream(2);
        let threads: HashSet<_> = (0..10).map(|_| served.whole_stream(2)).collect();
        assert!(threads.len() <= 2, "{threads:?}");
    }

    #[test]
    fn streams_at_once_have_threads_of_their_own_and_few_stay() {
        let served = serve(Thread::Reusable);
        let all: Vec<_> = (0..10).map(|_| served.stream()).collect();
        let threads: HashSet<_> = all.iter().map(|(_, thread)| *thread).collect();
        assert_eq!(threads.len(), 10);
        drop(all);
        served.until_waiting(IDLE);
    }

    #[test]
    fn a_spent_thread_serves_nobody_else() {
        let served = serve(Thread::Spent);
        let threads: HashSet<_> = (0..10).map(|_| served.stream().1).collect();
        assert_eq!(threads.len(), 10);
    }

    #[test]
    fn a_listener_that_breaks_is_told_of() {
        let served = serve(Thread::Reusable);
        rustix::net::shutdown(&served.workers.listener, rustix::net::Shutdown::Both).unwrap();
        assert!(served.broken.recv().unwrap().line().contains("accept"));
    }
}
