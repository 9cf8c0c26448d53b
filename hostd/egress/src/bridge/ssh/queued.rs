//! How much of what a guest sent still waits for the server.
//!
//! russh grants a new window when data arrives, not when it is used, so the
//! window is made small instead while too much is waiting.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

pub const WINDOW: u32 = 2 << 20;
/// Granted while much is waiting: asked about again after a byte.
const TRICKLE: u32 = 2;
const MUCH: usize = 4 << 20;
/// A guest that does not keep to its window is made to wait.
const MOST: usize = 16 << 20;

#[derive(Debug, Default)]
pub struct Queued {
    bytes: AtomicUsize,
    removed: Notify,
}

impl Queued {
    pub async fn add(&self, bytes: usize) {
        while self.bytes.load(Ordering::Relaxed) > MOST {
            self.removed.notified().await;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.removed.notify_one();
    }

    pub fn window(&self) -> u32 {
        if self.bytes.load(Ordering::Relaxed) > MUCH { TRICKLE } else { WINDOW }
    }
}
