//! How long to wait before a daemon that died is started again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);
/// Whoever lived this long did not die of its start.
const HEALTHY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// The wait after one that lived so long.
    pub fn after(&mut self, lived: Duration) -> Duration {
        if lived >= HEALTHY {
            self.0 = FIRST;
        }
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_to_a_limit_and_a_long_life_forgives() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..12).map(|_| backoff.after(Duration::ZERO)).collect();
        assert_eq!(waits.first(), Some(&FIRST));
        assert!(waits.is_sorted());
        assert_eq!(waits.last(), Some(&LONGEST));
        assert_eq!(backoff.after(HEALTHY), FIRST);
    }
}
