//! The streams that are open: counted, so that they stay bounded, and known,
//! so that the end of the machine is an end of each of them. A host that is
//! not told would wait for a peer that no longer exists.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use rustix::net::{Shutdown, shutdown};

/// Far above what a user opens, far below what would starve PID 1.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub struct Streams {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Weak<OwnedFd>>,
    /// Those with a process, which have something to say at its end.
    executing: usize,
}

/// One of the streams, until it is dropped.
pub struct Place<'s> {
    streams: &'s Streams,
    number: u64,
}

/// An executing stream, until it is dropped.
pub struct Executing<'s>(&'s Streams);

impl Streams {
    /// None: there are too many.
    pub fn enter(&self, socket: &Arc<OwnedFd>) -> Option<Place<'_>> {
        let mut table = self.table();
        if table.open.len() >= MOST {
            return None;
        }
        table.next += 1;
        let number = table.next;
        table.open.insert(number, Arc::downgrade(socket));
        Some(Place { streams: self, number })
    }

    pub fn execute(&self) -> Executing<'_> {
        self.table().executing += 1;
        Executing(self)
    }

    /// Waits a little for those that still have an exit to tell, then ends all.
    pub fn end_all(&self, patience: Duration) {
        let table = self.table();
        let (table, _) = self
            .changed
            .wait_timeout_while(table, patience, |table| table.executing > 0)
            .unwrap_or_else(PoisonError::into_inner);
        for socket in table.open.values().filter_map(Weak::upgrade) {
            // It may have ended by itself.
            let _ = shutdown(&*socket, Shutdown::Both);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.streams.table().open.remove(&self.number);
    }
}

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        self.0.table().executing -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read as _, os::unix::net::UnixStream};

    #[test]
    fn streams_are_counted_and_ended() {
        let streams = Streams::default();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = Arc::new(OwnedFd::from(ours));
        let mut places: Vec<_> = (0..MOST).map(|_| streams.enter(&socket)).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(streams.enter(&socket).is_none());
        places.pop();
        assert!(streams.enter(&socket).is_some());
        drop(streams.execute());
        streams.end_all(Duration::from_secs(10));
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }
}
