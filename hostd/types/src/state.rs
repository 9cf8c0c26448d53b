//! The lifecycle of a machine, as one pure match.
//!
//! ```text
//!              start               up               pause
//!   stopped ─────────▶ starting ────────▶ running ─────────▶ paused
//!      ▲  ▲               │  ▲              │ ▲ │               │
//!      │  │ stop          │  │ start        │ │ └──── suspend ──┤
//!      │  │               │  │              │ └─ up (given up)  ▼
//!      │  └──── asleep ◀──┼──┼──────────────┼────────────── suspending
//!      │           │      │  │       slept  │
//!      │           └──────┼──┘ start        │ stop
//!      │ down             ▼ broke           ▼
//!      └───────────── failed ◀──broke── stopping
//! ```
//!
//! `remove` is legal everywhere and final. A paused machine that is started
//! goes through `starting` too, for a millisecond. Whoever wants a change asks
//! [`next`]; nobody writes a state that it did not return.

use crate::{Code, Refusal};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Disk only; the next start boots.
    Stopped,
    /// A hypervisor is being brought up, or its vCPUs are.
    Starting,
    /// The guest answers.
    Running,
    /// vCPUs stopped, memory resident.
    Paused,
    /// Memory and devices are being saved.
    Suspending,
    /// Memory and devices on disk, no process left.
    Asleep,
    /// The guest was asked to shut down.
    Stopping,
    /// Something broke; the record says what, and the disk is as it was left.
    Failed,
    /// Going away for good.
    Removing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Someone wants it up: a connection, `restart`, `new`, `wake`.
    Start,
    /// The guest answered; or a suspension was given up and it goes on.
    Up,
    /// It is idle: stop the vCPUs.
    Pause,
    /// It is idle for longer, or someone said `sleep`.
    Suspend,
    /// Memory and devices are on disk and the process is gone.
    Slept,
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
    use State::{Asleep, Failed, Paused, Removing, Running, Starting, Stopped, Stopping, Suspending};
    match (state, event) {
        (_, Event::Remove) => Ok(Removing),
        (Stopped | Failed | Asleep | Paused, Event::Start) => Ok(Starting),
        (Starting | Suspending, Event::Up) => Ok(Running),
        (Running, Event::Pause) => Ok(Paused),
        (Running | Paused, Event::Suspend) => Ok(Suspending),
        (Suspending, Event::Slept) => Ok(Asleep),
        (Starting | Running | Paused, Event::Stop) => Ok(Stopping),
        // Nothing runs: the memory of a sleeping machine is let go, and the
        // failure of a failed one has been looked at.
        (Stopped | Failed | Asleep, Event::Stop) => Ok(Stopped),
        (Starting | Running | Paused | Suspending | Stopping, Event::Down) => Ok(Stopped),
        (Starting | Running | Paused | Suspending | Stopping, Event::Broke) => Ok(Failed),
        (Starting | Running, Event::Start)
        | (Running, Event::Up)
        | (Paused, Event::Pause)
        | (Asleep, Event::Suspend | Event::Slept) => Ok(state),
        (Stopped | Failed, Event::Suspend) => Err(Refusal::new(
            Code::Conflict,
            format!("the machine is {state}, it has no memory to keep"),
            "connect to it first; a stopped machine costs nothing either",
        )),
        (Removing, _) => {
            Err(Refusal::new(Code::NotFound, "the machine is being removed", "make it anew with 'new'"))
        }
        (
            Stopped | Starting | Running | Paused | Suspending | Asleep | Stopping | Failed,
            Event::Start
            | Event::Up
            | Event::Pause
            | Event::Suspend
            | Event::Slept
            | Event::Stop
            | Event::Down
            | Event::Broke,
        ) => Err(busy(state)),
    }
}

fn busy(state: State) -> Refusal {
    Refusal::new(Code::Conflict, format!("the machine is {state}"), "try again in a moment")
}

impl State {
    /// Does a hypervisor exist, or may one?
    pub const fn has_process(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Paused | Self::Suspending | Self::Stopping)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Suspending => "suspending",
            Self::Asleep => "asleep",
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

    const STATES: [State; 9] = [
        State::Stopped,
        State::Starting,
        State::Running,
        State::Paused,
        State::Suspending,
        State::Asleep,
        State::Stopping,
        State::Failed,
        State::Removing,
    ];
    const EVENTS: [Event; 9] = [
        Event::Start,
        Event::Up,
        Event::Pause,
        Event::Suspend,
        Event::Slept,
        Event::Stop,
        Event::Down,
        Event::Broke,
        Event::Remove,
    ];

    #[test]
    fn a_life() {
        let mut state = State::Stopped;
        for (event, expected) in [
            (Event::Start, State::Starting),
            (Event::Up, State::Running),
            (Event::Pause, State::Paused),
            (Event::Start, State::Starting),
            (Event::Up, State::Running),
            (Event::Pause, State::Paused),
            (Event::Suspend, State::Suspending),
            (Event::Slept, State::Asleep),
            (Event::Start, State::Starting),
            (Event::Up, State::Running),
            (Event::Suspend, State::Suspending),
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
    fn whatever_rests_can_be_started() {
        for state in STATES {
            if !matches!(state, State::Suspending | State::Stopping | State::Removing) {
                assert!(matches!(next(state, Event::Start), Ok(State::Starting | State::Running)), "{state}");
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
