//! Counting an event that may come very often, so that a line stands for many.

use std::time::Duration;
use tokio::time::Instant;

/// Between two lines about the same event.
pub const MINUTE: Duration = Duration::from_secs(60);

/// Counts one kind of event, of which the first is a line at once, and then one a minute.
#[derive(Debug, Default)]
pub struct Repeats {
    /// When the last line was due.
    since: Option<Instant>,
    counted: u64,
}

impl Repeats {
    /// Counts one event. If a line is due now: for how many events it stands.
    pub fn add(&mut self) -> Option<u64> {
        self.counted += 1;
        self.take(MINUTE)
    }

    /// For how many events a line stands, if the last one is at least so old and there is
    /// anything to tell.
    pub fn take(&mut self, age: Duration) -> Option<u64> {
        if self.counted == 0 || !self.is_older_than(age) {
            return None;
        }
        self.since = Some(Instant::now());
        Some(std::mem::take(&mut self.counted))
    }

    /// Has no line been due for so long?
    pub fn is_older_than(&self, age: Duration) -> bool {
        self.since.is_none_or(|since| since.elapsed() >= age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_is_told_at_once_and_the_others_once_a_minute() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.add(), Some(1));
        for _ in 0..99 {
            assert_eq!(repeats.add(), None);
        }
        tokio::time::advance(MINUTE).await;
        assert_eq!(repeats.add(), Some(100));
        assert_eq!((repeats.add(), repeats.take(MINUTE)), (None, None));
        assert_eq!(repeats.take(Duration::ZERO), Some(1));
        assert_eq!(repeats.take(Duration::ZERO), None, "nothing came since");
    }
}
