//! How many connections one machine may have, so that it cannot take everybody's.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

#[derive(Debug, Default)]
pub struct Load {
    taken: Arc<AtomicUsize>,
    /// Of all machines, where that is counted.
    total: Arc<AtomicUsize>,
}

/// Held for as long as a connection lives.
#[derive(Debug)]
pub struct Seat {
    taken: Arc<AtomicUsize>,
    total: Arc<AtomicUsize>,
}

impl Load {
    pub fn within(total: Arc<AtomicUsize>) -> Self {
        Self { taken: Arc::default(), total }
    }

    pub fn admit(&self, limit: usize) -> Option<Seat> {
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        let seat = Seat { taken: self.taken.clone(), total: self.total.clone() };
        (before < limit).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_limited_and_given_back() {
        let total = Arc::new(AtomicUsize::new(0));
        let (load, other) = (Load::within(total.clone()), Load::within(total.clone()));
        let _elsewhere = other.admit(1).unwrap();
        let first = load.admit(2).unwrap();
        let _second = load.admit(2).unwrap();
        assert!(load.admit(2).is_none());
        drop(first);
        assert!(load.admit(2).is_some());
        assert_eq!(total.load(Ordering::Relaxed), 2);
    }
}
