//! How many bytes have moved on the user's streams, ever. hostd watches it
//! grow: a machine on whose streams nothing moves may rest.

use std::sync::atomic::{AtomicU64, Ordering};

static MOVED: AtomicU64 = AtomicU64::new(0);

pub fn count(bytes: usize) {
    MOVED.fetch_add(bytes as u64, Ordering::Relaxed);
}

pub fn moved() -> u64 {
    MOVED.load(Ordering::Relaxed)
}
