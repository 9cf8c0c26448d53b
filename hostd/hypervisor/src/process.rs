//! A process that may outlive hostd, or have outlived an earlier one.
//!
//! Held by a pidfd, which names one process for ever: a signal can never reach
//! a stranger that got the same number, and the end is seen whether or not the
//! process is our child.

use crate::Error;
use nix::time::clock_getcpuclockid;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::io::unix::AsyncFd;

/// For a killed process to go; its memory is given back first.
const KILL: Duration = Duration::from_secs(30);

/// What the kernel says of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Status(i32),
    Signal(i32),
    /// Somebody else's child: only its parent is told.
    Untold,
}

#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    started: u64,
    pidfd: AsyncFd<OwnedFd>,
    /// Our child, and ours to reap.
    ours: bool,
    /// The last reading, for a process that is gone has no clock.
    cpu: AtomicU64,
}

impl Process {
    /// Watches a child; one that cannot be watched is ended.
    pub(crate) fn of_child(pid: Pid) -> Result<Self, Error> {
        Self::watch(pid).inspect_err(|_| {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            collect(pid);
        })
    }

    fn watch(pid: Pid) -> Result<Self, Error> {
        let failed = |source| Error::Io { operation: "watching a new process", source };
        let gone = || failed(std::io::ErrorKind::NotFound.into());
        // Nobody has reaped it yet, so the number is still its own.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        let started = stat(pid).map(|stat| stat.started).ok_or_else(gone)?;
        let pidfd = register(pidfd).map_err(failed)?;
        Ok(Self { pid, started, pidfd, ours: true, cpu: AtomicU64::new(0) })
    }

    /// Finds a process by what was written down of it; `None`: it is gone.
    pub(crate) fn find(pid: i32, started: u64) -> Result<Option<Self>, Error> {
        let failed = |source| Error::Io { operation: "finding a process again", source };
        let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
        // The descriptor first: what is read afterwards is of the process it holds.
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            // EINVAL: the number now belongs to a mere thread.
            Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        };
        match stat(pid) {
            Some(stat) if stat.started == started && !matches!(stat.state, 'Z' | 'X') => {}
            _ => return Ok(None),
        }
        let pidfd = register(pidfd).map_err(failed)?;
        Ok(Some(Self { pid, started, pidfd, ours: false, cpu: AtomicU64::new(0) }))
    }

    pub(crate) fn id(&self) -> Pid {
        self.pid
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Whether a signal has stopped it.
    pub(crate) fn is_stopped(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.state == 'T')
    }

    /// Signals the process; one that is gone already is no error.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Error> {
        match pidfd_send_signal(self.pidfd.get_ref(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Error::Io { operation: "signalling a process", source: error.into() }),
        }
    }

    /// Ends it and waits for its end. For a process that nobody else watches.
    pub(crate) async fn kill(&self) -> Result<(), Error> {
        self.signal(Signal::KILL)?;
        let ended = tokio::time::timeout(KILL, self.ended()).await;
        ended.map(drop).map_err(|_| Error::Timeout { operation: "ending a hypervisor", limit: KILL })
    }

    /// Resolves when the process is gone, and reaps it if it is ours. To be
    /// awaited in one place only: the kernel tells a status once.
    pub(crate) async fn ended(&self) -> End {
        // Readable for ever once it has ended, so the readiness is never cleared.
        if self.pidfd.readable().await.is_err() {
            // The runtime is being shut down; the process may well live on.
            std::future::pending::<()>().await;
        }
        self.reap()
    }

    /// Waits for its end without a runtime.
    pub(crate) fn reap(&self) -> End {
        if !self.ours {
            return End::Untold;
        }
        let told = waitid(WaitId::PidFd(self.pidfd.get_ref().as_fd()), WaitIdOptions::EXITED);
        match told {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (_, Some(signal)) => End::Signal(signal),
                (status, None) => End::Status(status.unwrap_or(0)),
            },
            Ok(None) | Err(_) => End::Untold,
        }
    }

    /// Nanoseconds on a CPU so far, all threads together.
    pub(crate) fn cpu_time(&self) -> u64 {
        let now = clock_getcpuclockid(nix::unistd::Pid::from_raw(self.pid()))
            .and_then(nix::time::clock_gettime)
            .map(|time| {
                let part = |value: i64, unit: u64| u64::try_from(value).unwrap_or(0).saturating_mul(unit);
                part(time.tv_sec(), 1_000_000_000).saturating_add(part(time.tv_nsec(), 1))
            });
        // Once ended, the number may be a stranger's: a clock that jumps back is not ours.
        self.cpu.fetch_max(now.unwrap_or(0), Ordering::Relaxed).max(now.unwrap_or(0))
    }
}

#[allow(unsafe_code)]
fn register(pidfd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by the AsyncFd from here on, and nothing
    // replaces or closes it before that is dropped.
    unsafe { AsyncFd::register(pidfd) }.map_err(Into::into)
}

/// Reaps a child that has ended, or is about to.
pub(crate) fn collect(child: Pid) {
    let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
}

struct Stat {
    /// As `ps` shows it: R, S, D, T, Z …
    state: char,
    started: u64,
}

fn stat(pid: Pid) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
}

/// The second field is the program's name in brackets and may hold anything,
/// brackets and blanks included: fields are counted from the last bracket.
fn parse_stat(line: &str) -> Option<Stat> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // State is field 3, the start time field 22.
    let started = fields.nth(18)?.parse().ok()?;
    Some(Stat { state, started })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let line = "42 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9876 20";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.state, stat.started), ('S', 9876));
        assert!(parse_stat("42 (short) S 1").is_none());
    }

    #[tokio::test]
    async fn an_end_is_seen_and_told_to_the_parent() {
        #[allow(clippy::zombie_processes)] // `Process` waits for it.
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of_child(Pid::from_child(&child)).unwrap();
        let found = Process::find(process.pid(), process.started()).unwrap().unwrap();
        assert!(Process::find(process.pid(), process.started() + 1).unwrap().is_none());
        process.signal(Signal::KILL).unwrap();
        assert_eq!(found.ended().await, End::Untold);
        assert_eq!(process.ended().await, End::Signal(9));
        process.signal(Signal::KILL).unwrap();
        assert!(Process::find(process.pid(), process.started()).unwrap().is_none());
    }
}
