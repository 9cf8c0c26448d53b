//! The lifecycle of a machine, as one pure match.
//!
//! ```text
//!              start                 up
//!   stopped ─────────▶ starting ───────────▶ running
//!      ▲                  │                    │  │
//!      │ down             │ broke        stop  │  │ broke
//!      │                  ▼                    ▼  ▼
//!      └────────────── stopping ◀──────────────┘ failed ──start──▶ starting
//! ```
//!
//! `remove` is legal everywhere and final. Whoever wants a change asks
//! [`next`]; nobody writes a state that it did not return.

use crate::{Code, Refusal};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Disk only; the next start boots.
    Stopped,
    /// A hypervisor is being brought up.
    Starting,
    /// The guest answers.
    Running,
    /// The guest was asked to shut down.
    Stopping,
    /// Something broke; the record says what, and the disk is as it was left.
    Failed,
    /// Going away for good.
    Removing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Someone wants it up: a connection, `restart`, `new`.
    Start,
    /// The guest answered.
    Up,
    /// Someone wants it down.
    Stop,
    /// The hypervisor is gone, as asked or by the guest's own shutdown.
    Down,
    /// The start failed, the hypervisor died or the guest stopped answering.
    Broke,
    Remove,
}

/// The one place that says what may follow what.
pub fn next(state: State, event: Event) -> Result<State, Refusal> {
    use State::{Failed, Removing, Running, Starting, Stopped, Stopping};
    match (state, event) {
        (_, Event::Remove) => Ok(Removing),
        (Stopped | Failed, Event::Start) => Ok(Starting),
        (Starting, Event::Up) => Ok(Running),
        (Starting | Running, Event::Stop) => Ok(Stopping),
        // A failed machine that is stopped has been looked at: the failure is closed.
        (Stopped | Failed, Event::Stop) => Ok(Stopped),
        (Starting | Running | Stopping, Event::Down) => Ok(Stopped),
        (Starting | Running | Stopping, Event::Broke) => Ok(Failed),
        (Starting | Running, Event::Start) | (Running, Event::Up) => Ok(state),
        (Stopping, Event::Start | Event::Stop) => Err(busy(state)),
        (Removing, _) => {
            Err(Refusal::new(Code::NotFound, "the machine is being removed", "make it anew with 'new'"))
        }
        (Stopped | Failed, Event::Up | Event::Down | Event::Broke) | (Stopping, Event::Up) => {
            Err(busy(state))
        }
    }
}

fn busy(state: State) -> Refusal {
    Refusal::new(Code::Conflict, format!("the machine is {state}"), "try again in a moment")
}

impl State {
    /// Does a hypervisor exist, or may one?
    pub const fn has_process(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Stopping)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Failed => "failed",
            Self::Removing => "removing",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 6] =
        [State::Stopped, State::Starting, State::Running, State::Stopping, State::Failed, State::Removing];
    const EVENTS: [Event; 6] =
        [Event::Start, Event::Up, Event::Stop, Event::Down, Event::Broke, Event::Remove];

    #[test]
    fn a_life() {
        let mut state = State::Stopped;
        for (event, expected) in [
            (Event::Start, State::Starting),
            (Event::Up, State::Running),
            (Event::Stop, State::Stopping),
            (Event::Down, State::Stopped),
            (Event::Start, State::Starting),
            (Event::Broke, State::Failed),
            (Event::Start, State::Starting),
            (Event::Up, State::Running),
            (Event::Remove, State::Removing),
        ] {
            state = next(state, event).unwrap();
            assert_eq!(state, expected);
        }
    }

    #[test]
    fn nothing_comes_back_from_removal() {
        for event in EVENTS {
            if let Ok(state) = next(State::Removing, event) {
                assert_eq!(state, State::Removing);
            }
        }
    }

    #[test]
    fn removal_is_always_possible_and_a_death_is_never_missed() {
        for state in STATES {
            assert_eq!(next(state, Event::Remove).unwrap(), State::Removing);
            if state.has_process() {
                assert_eq!(next(state, Event::Broke).unwrap(), State::Failed);
                assert_eq!(next(state, Event::Down).unwrap(), State::Stopped);
            }
        }
    }

    #[test]
    fn every_refusal_has_a_hint() {
        for state in STATES {
            for event in EVENTS {
                if let Err(refusal) = next(state, event) {
                    assert!(!refusal.hint.is_empty());
                }
            }
        }
    }
}
