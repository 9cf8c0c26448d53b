//! Processes that others started, known by what they wrote down.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::{
    fd::{AsFd, OwnedFd},
    process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal},
};
use std::{fmt, str::FromStr, time::Duration};

const BETWEEN: Duration = Duration::from_millis(10);

/// A process by its pid and the moment it started, for pids are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    pid: i32,
    started: u64,
}

impl Recorded {
    pub fn this() -> Option<Self> {
        Self::of(getpid().as_raw_pid())
    }

    pub fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid, started: start_time(&stat)? })
    }

    pub const fn pid(self) -> i32 {
        self.pid
    }

    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// A hold on it, if it still runs.
    pub fn open(self) -> Option<Running> {
        let descriptor = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::NONBLOCK).ok()?;
        // Looked at after it is held, so that what was looked at is what is held.
        self.is_alive().then_some(Running(descriptor))
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

impl FromStr for Recorded {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (pid, started) = text.trim().split_once(' ').ok_or(())?;
        Ok(Self { pid: pid.parse().map_err(|_| ())?, started: started.parse().map_err(|_| ())? })
    }
}

/// The 22nd field of /proc/PID/stat. `None` for one that has ended and only
/// waits to be collected.
fn start_time(stat: &str) -> Option<u64> {
    // The second field is the program's name, which may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// A process that cannot be mistaken for another while this is held.
#[derive(Debug)]
pub struct Running(OwnedFd);

impl Running {
    /// One that has just ended needs no signal.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.0, signal);
    }

    /// Waits until it has ended; false if it has not within the limit.
    pub async fn ended(&self, limit: Duration) -> bool {
        // Asked again and again: the runtime watches descriptors of this kind only by unsafe means.
        let ended = async {
            while !self.has_ended() {
                tokio::time::sleep(BETWEEN).await;
            }
        };
        tokio::time::timeout(limit, ended).await.is_ok()
    }

    fn has_ended(&self) -> bool {
        let mut descriptors = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut descriptors, PollTimeout::ZERO), Ok(1))
    }

    /// Asks it to end, and makes it end if it does not listen.
    pub async fn end(&self, patience: Duration) {
        self.signal(Signal::TERM);
        if !self.ended(patience).await {
            self.signal(Signal::KILL);
            self.ended(patience).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_start_time_is_found_whatever_the_program_is_called() {
        let stat = "7 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(start_time(stat), Some(4242));
        assert_eq!(start_time(&stat.replace(") S", ") Z")), None);
        assert_eq!(start_time("nonsense"), None);
    }

    #[test]
    fn a_record_is_read_as_it_is_written() {
        let this = Recorded::this().unwrap();
        assert_eq!(this.to_string().parse(), Ok(this));
        assert!("".parse::<Recorded>().is_err());
    }

    #[tokio::test]
    async fn another_process_with_the_same_pid_is_not_taken_for_it() {
        let this = Recorded::this().unwrap();
        assert!(this.open().is_some());
        assert!(Recorded { started: this.started + 1, ..this }.open().is_none());
    }

    #[tokio::test]
    async fn an_end_is_noticed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let running = Recorded::of(i32::try_from(child.id()).unwrap()).unwrap().open().unwrap();
        assert!(!running.ended(Duration::from_millis(20)).await);
        running.end(Duration::from_secs(10)).await;
        assert!(running.ended(Duration::ZERO).await);
        child.wait().unwrap();
    }
}
