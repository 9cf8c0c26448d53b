//! When a machine rests, and when it is woken.

use crate::Span;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How long a machine is idle before it is paused, and before it sleeps.
/// `None`: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdlePolicy {
    pub pause: Option<Span>,
    pub sleep: Option<Span>,
}

/// A wake by the clock, for cron and timers inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    pub at: Timestamp,
    /// Again and again, this far apart.
    pub every: Option<Span>,
}

impl Schedule {
    /// The schedule after it has fired at `now`; nothing missed is made up for.
    pub fn after(self, now: Timestamp) -> Option<Self> {
        let every = self.every?;
        let step = i64::try_from(every.duration().as_millis()).ok().filter(|step| *step > 0)?;
        let missed = (now.as_millisecond() - self.at.as_millisecond()).max(0) / step;
        let at = self.at.as_millisecond().checked_add(step.checked_mul(missed + 1)?)?;
        Some(Self { at: Timestamp::from_millisecond(at).ok()?, every: Some(every) })
    }
}

/// What was seen of a machine, from which the policy decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// Commands without a terminal that run now.
    pub commands: u32,
    /// Terminals, and those with a job in the foreground that does something.
    pub terminals: u32,
    pub busy_terminals: u32,
    /// Hundredths of one CPU over the last sample.
    pub cpu_percent: f32,
    /// Since bytes last moved on a terminal, forward or command.
    pub quiet_ms: u64,
    /// Since anything at all spoke against resting.
    pub idle_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_wake_keeps_its_beat_and_makes_up_for_nothing() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let hourly = Schedule { at: at(1_000), every: Some(Span::seconds(3_600)) };
        assert_eq!(hourly.after(at(1_000)).unwrap().at, at(4_600));
        assert_eq!(hourly.after(at(1_030)).unwrap().at, at(4_600));
        assert_eq!(hourly.after(at(20_000)).unwrap().at, at(22_600));
        assert_eq!(Schedule { at: at(1_000), every: None }.after(at(1_000)), None);
    }
}
