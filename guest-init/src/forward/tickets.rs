//! Connections that a listener accepted and the host has yet to claim.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

#[derive(Debug, Default)]
pub struct Tickets {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, OwnedFd>>,
}

impl Tickets {
    pub fn issue(&self, socket: OwnedFd) -> u64 {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.waiting().insert(ticket, socket);
        ticket
    }

    /// A ticket is good once.
    pub fn claim(&self, ticket: u64) -> Option<OwnedFd> {
        self.waiting().remove(&ticket)
    }

    pub fn is_waiting(&self, ticket: u64) -> bool {
        self.waiting().contains_key(&ticket)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, OwnedFd>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_once() {
        let tickets = Tickets::default();
        let (reader, writer) = std::io::pipe().unwrap();
        let (first, second) = (tickets.issue(reader.into()), tickets.issue(writer.into()));
        assert_ne!(first, second);
        assert!(tickets.claim(first).is_some());
        assert!(tickets.claim(first).is_none());
        assert!(!tickets.is_waiting(first));
        assert!(tickets.is_waiting(second));
    }
}
