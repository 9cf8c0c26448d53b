//! Memory for bodies that are collected: so much for one machine, so much in all.
//!
//! What does not fit waits, and with it, by flow control, the guest that sends
//! it. When it gets tight in all, a machine that holds little goes on: what some
//! machines hold back must not stop the others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Of all machines.
#[derive(Debug)]
pub struct Budget {
    most: u64,
    used: Mutex<u64>,
    freed: Notify,
}

/// Of one machine.
#[derive(Debug)]
pub struct Share {
    all: Arc<Budget>,
    used: Mutex<u64>,
}

/// Memory that is taken, until it is dropped.
#[derive(Debug)]
pub struct Taken {
    share: Arc<Share>,
    bytes: u64,
}

fn lock(used: &Mutex<u64>) -> MutexGuard<'_, u64> {
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Budget {
    pub fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { most, used: Mutex::new(0), freed: Notify::new() })
    }

    pub fn share(self: &Arc<Self>) -> Arc<Share> {
        Arc::new(Share { all: self.clone(), used: Mutex::new(0) })
    }
}

impl Share {
    /// Waits until there is room for so much, of which one machine may have `most`.
    pub async fn take(self: &Arc<Self>, bytes: u64, most: u64) -> Taken {
        loop {
            let freed = self.all.freed.notified();
            if let Some(taken) = self.try_take(bytes, most) {
                return taken;
            }
            freed.await;
        }
    }

    /// Takes so much if there is room now.
    pub fn try_take(self: &Arc<Self>, bytes: u64, most: u64) -> Option<Taken> {
        let (mut all, mut own) = (lock(&self.all.used), lock(&self.used));
        let is_tight = *all + bytes > self.all.most;
        // One body at a time passes in any case, and by itself whatever its size.
        if bytes > 0 && *own > 0 && (is_tight || *own + bytes > most) {
            return None;
        }
        *all += bytes;
        *own += bytes;
        Some(Taken { share: self.clone(), bytes })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        {
            let (mut all, mut own) = (lock(&self.share.all.used), lock(&self.share.used));
            *all = all.saturating_sub(self.bytes);
            *own = own.saturating_sub(self.bytes);
        }
        self.share.all.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use tokio::time::{Duration, timeout};

    const MOST: u64 = 10;

    #[tokio::test]
    async fn a_machine_waits_for_its_own_and_not_for_others() {
        let all = Budget::new(25);
        let (one, two, three) = (all.share(), all.share(), all.share());
        let first = one.take(6, MOST).await;
        let _second = one.take(4, MOST).await;
        assert!(one.try_take(1, MOST).is_none(), "its share is used up");
        let _others = (two.take(10, MOST).await, three.take(4, MOST).await);
        assert!(three.try_take(4, MOST).is_none(), "it is tight");
        // Who has nothing gets one in any case.
        let bystander = all.share();
        let _passes = bystander.try_take(8, MOST).expect("a bystander");
        assert!(bystander.try_take(1, MOST).is_none());
        let mut waiting = pin!(one.take(5, MOST));
        assert!(timeout(Duration::from_millis(1), &mut waiting).await.is_err());
        drop(first);
        drop(_passes);
        let taken = timeout(Duration::from_secs(60), waiting).await.expect("it was let go");
        drop(taken);
        assert_eq!(*lock(&one.used), 4);
    }

    #[tokio::test]
    async fn one_that_is_too_large_passes_alone() {
        let all = Budget::new(5);
        let share = all.share();
        let alone = share.take(100, MOST).await;
        assert!(share.try_take(1, MOST).is_none());
        drop(alone);
        assert_eq!((*lock(&all.used), *lock(&share.used)), (0, 0));
    }
}
