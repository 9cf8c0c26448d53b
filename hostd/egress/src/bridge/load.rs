//! How many connections one machine may have, so that it cannot take everybody's.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

#[derive(Debug, Default)]
pub struct Load(Arc<AtomicUsize>);

/// Held for as long as a connection lives.
#[derive(Debug)]
pub struct Seat(Arc<AtomicUsize>);

impl Load {
    pub fn admit(&self, limit: usize) -> Option<Seat> {
        let taken = self.0.fetch_add(1, Ordering::Relaxed);
        let seat = Seat(self.0.clone());
        (taken < limit).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_limited_and_given_back() {
        let load = Load::default();
        let first = load.admit(2).unwrap();
        let _second = load.admit(2).unwrap();
        assert!(load.admit(2).is_none());
        drop(first);
        assert!(load.admit(2).is_some());
    }
}
