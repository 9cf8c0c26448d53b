//! How often a machine may ask. A flood is dropped before it is parsed.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

#[derive(Debug, Default)]
pub struct Budget(Mutex<Option<Bucket>>);

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
    /// What was dropped since that was last said, and when it was.
    dropped: u64,
    said: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Allowance {
    Granted,
    Dropped,
    /// The first in a second to be dropped, and how many were before it.
    DroppedFirst(u64),
}

impl Budget {
    /// One question at `rate` in a second, and as many at once.
    pub fn ask(&self, rate: u32, now: Instant) -> Allowance {
        let rate = f64::from(rate.max(1));
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket =
            bucket.get_or_insert_with(|| Bucket { tokens: rate, filled: now, dropped: 0, said: None });
        let since = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.tokens = (bucket.tokens + since * rate).min(rate);
        bucket.filled = now;
        if bucket.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            return Allowance::Granted;
        }
        if bucket.said.is_none_or(|said| now.saturating_duration_since(said).as_secs() >= 1) {
            bucket.said = Some(now);
            return Allowance::DroppedFirst(std::mem::take(&mut bucket.dropped));
        }
        bucket.dropped += 1;
        Allowance::Dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_is_dropped_and_mentioned_once_a_second() {
        let budget = Budget::default();
        let now = Instant::now();
        let asked: Vec<_> = (0..10).map(|_| budget.ask(5, now)).collect();
        assert_eq!(asked.iter().filter(|one| **one == Allowance::Granted).count(), 5);
        assert_eq!(asked.get(5), Some(&Allowance::DroppedFirst(0)));
        assert_eq!(budget.ask(5, now + Duration::from_millis(250)), Allowance::Granted);
        for _ in 0..5 {
            budget.ask(5, now + Duration::from_secs(2));
        }
        assert_eq!(budget.ask(5, now + Duration::from_secs(2)), Allowance::DroppedFirst(4));
    }
}
