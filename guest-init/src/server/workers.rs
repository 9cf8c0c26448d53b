//! Threads for streams. Making a thread, and ending one, is a good part of
//! what the first answer after a wake costs where guests are emulated, so a few
//! that are done wait for the next stream.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use crate::{error::Result, guest};

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
    serve: Box<Serve>,
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    sockets: VecDeque<OwnedFd>,
    /// Threads that wait and have no socket promised to them.
    idle: usize,
}

impl Workers {
    pub fn new(serve: impl Fn(OwnedFd) -> Thread + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { serve: Box::new(serve), queue: Mutex::default(), arrived: Condvar::new() })
    }

    /// Serves a stream on a thread of its own, one that waits if there is any.
    pub fn take(self: &Arc<Self>, socket: OwnedFd) -> Result<()> {
        let mut queue = self.queue();
        if queue.idle > 0 {
            queue.idle -= 1;
            queue.sockets.push_back(socket);
            self.arrived.notify_one();
            return Ok(());
        }
        drop(queue);
        let workers = Arc::clone(self);
        guest::spawn("stream", move || workers.work(socket))
    }

    fn work(&self, first: OwnedFd) {
        let mut next = Some(first);
        while let Some(socket) = next {
            next = match (self.serve)(socket) {
                Thread::Reusable => self.wait(),
                Thread::Spent => None,
            };
        }
    }

    fn wait(&self) -> Option<OwnedFd> {
        let mut queue = self.queue();
        if queue.idle >= IDLE {
            return None;
        }
        queue.idle += 1;
        loop {
            queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
            if let Some(socket) = queue.sockets.pop_front() {
                return Some(socket);
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Read as _,
        os::unix::net::UnixStream,
        sync::mpsc::{Sender, channel},
        thread::ThreadId,
    };

    /// Each stream tells which thread served it, and is served until it is closed.
    fn workers(thread: Thread, told: Sender<ThreadId>) -> Arc<Workers> {
        Workers::new(move |socket| {
            let _ = told.send(std::thread::current().id());
            let _ = UnixStream::from(socket).read_to_end(&mut Vec::new());
            thread
        })
    }

    fn stream(workers: &Arc<Workers>) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        workers.take(theirs.into()).unwrap();
        ours
    }

    fn until_idle(workers: &Workers, idle: usize) {
        while workers.queue().idle != idle {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_that_is_done_serves_the_next() {
        let (told, threads) = channel();
        let workers = workers(Thread::Reusable, told);
        drop(stream(&workers));
        until_idle(&workers, 1);
        drop(stream(&workers));
        assert_eq!(threads.recv().unwrap(), threads.recv().unwrap());
        until_idle(&workers, 1);
    }

    #[test]
    fn streams_at_once_have_threads_of_their_own_and_few_stay() {
        let (told, threads) = channel();
        let workers = workers(Thread::Reusable, told);
        let all: Vec<_> = (0..10).map(|_| stream(&workers)).collect();
        let served: std::collections::HashSet<_> = (0..10).map(|_| threads.recv().unwrap()).collect();
        assert_eq!(served.len(), 10);
        drop(all);
        until_idle(&workers, IDLE);
    }

    #[test]
    fn a_spent_thread_serves_nobody_else() {
        let (told, threads) = channel();
        let workers = workers(Thread::Spent, told);
        drop(stream(&workers));
        drop(stream(&workers));
        assert_ne!(threads.recv().unwrap(), threads.recv().unwrap());
        assert_eq!(workers.queue().idle, 0);
    }
}
