//! Real-time priority for the first second of an emulated boot.
//!
//! A guest's kernel measures the rate of its local APIC timer once, early in its boot: it reads the timer, waits until
//! the TSC has advanced by 25 periods of 4 ms, and reads it again. Under TCG both run on the host's clock, also while
//! the vCPU's thread is preempted. A preemption at the beginning of the measurement makes the remaining periods pass at
//! once, and the kernel takes the timer to be up to ten thousand times slower than it is. Every timer interrupt then
//! comes that much too early, and is asked for again (a boot that crawls, a machine that wastes CPU for good); at the
//! extreme the kernel gives the timer up ("APIC frequency too slow") and has nothing to wake it: the boot stands still.
//! A microvm has no other timer to measure by. docs/drivers.md has the measurements.
//!
//! So a boot's threads run before all ordinary ones until guest-init has written to the console, which it does before
//! anything of the user's runs. Should hostd die meanwhile, `berth-jail`'s limit of real time bounds it. Boots take turns for it: with more of them than cores they would preempt each other.

use crate::files::CONSOLE;
use nix::libc;
use rustix::process::Pid;
use std::{
    collections::BTreeSet,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};

/// How long boots, one after the other, may take until guest-init runs. With this priority it is about a second of a
/// core, whatever else the host does; a host that is itself a guest, or whose disk keeps a page waiting, can still hold a
/// vCPU at the wrong moment. After the last of them a boot goes on with ordinary priority.
pub(super) const PATIENCE: [Duration; 3] =
    [Duration::from_secs(3), Duration::from_secs(6), Duration::from_secs(12)];
/// Between two looks at the console.
const STEP: Duration = Duration::from_millis(10);

/// The turns of an installation's boots.
#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<Semaphore>);

impl Turns {
    /// A boot keeps one vCPU and QEMU's main loop busy: two cores for each turn.
    pub(super) fn for_this_host() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Arc::new(Semaphore::new((cores / 2).max(1))))
    }

    pub(super) async fn next(&self) -> Option<Turn> {
        // It is never closed.
        self.0.clone().acquire_owned().await.ok().map(|permit| Turn { _permit: permit })
    }
}

/// The right to boot with real-time priority.
#[derive(Debug)]
pub(super) struct Turn {
    _permit: OwnedSemaphorePermit,
}

impl Turn {
    /// Raises the threads of a hypervisor that has just been started in `directory`. None where this host refuses.
    pub(super) fn raise(self, pid: i32, directory: &Path) -> Option<Raised> {
        let pid = Pid::from_raw(pid)?;
        let console = directory.join(CONSOLE);
        let raised = Raised { pid, began_with: length(&console), console, _turn: self };
        match schedule_all(pid, libc::SCHED_RR, 1) {
            Ok(()) => Some(raised),
            Err(error) => {
                tracing::warn!(%error, "a boot cannot have real-time priority; its timers may be measured wrongly");
                None
            }
        }
    }
}

/// A hypervisor with real-time priority. Dropped, it has the ordinary one again.
#[derive(Debug)]
pub(super) struct Raised {
    pid: Pid,
    console: PathBuf,
    /// The console's length before the guest wrote to it.
    began_with: u64,
    _turn: Turn,
}

impl Raised {
    /// Returns when guest-init has written to the console, false if it has not within the limit.
    pub(super) async fn guest_init_runs(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while length(&self.console) <= self.began_with {
            if Instant::now() >= end {
                return false;
            }
            sleep(STEP).await;
        }
        true
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // An error: the process has ended.
        let _ = lower(self.pid);
    }
}

/// Gives a hypervisor the ordinary priority, also one that another hostd had raised.
pub(super) fn lower(pid: Pid) -> io::Result<()> {
    schedule_all(pid, libc::SCHED_OTHER, 0)
}

fn length(console: &Path) -> u64 {
    std::fs::symlink_metadata(console).map_or(0, |metadata| metadata.size())
}

/// Sets the policy of every thread, also of those that begin meanwhile: they have their creator's.
fn schedule_all(pid: Pid, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let mut done = BTreeSet::new();
    loop {
        let mut found_new = false;
        for entry in std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))? {
            let name = entry?.file_name();
            let Some(thread) = name.to_str().and_then(|name| name.parse::<libc::pid_t>().ok()) else {
                continue;
            };
            if done.insert(thread) {
                found_new = true;
                schedule(thread, policy, priority)?;
            }
        }
        if !found_new {
            return Ok(());
        }
    }
}

#[allow(unsafe_code)]
fn schedule(thread: libc::pid_t, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: reads one structure, which outlives the call.
    match unsafe { libc::sched_setscheduler(thread, policy, &raw const parameter) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // A thread that has ended since.
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write as _, process::Command};

    fn policy(pid: u32) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The 41st field, counted behind the name, which is the second.
        stat.rsplit(')').next().unwrap().split_whitespace().nth(38).unwrap().to_owned()
    }

    #[tokio::test]
    async fn it_ends_when_the_guest_writes_and_lets_the_next_boot_begin() {
        berth_sys::needs_root!();
        let directory = std::env::temp_dir().join(format!("berth-realtime-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut console = std::fs::File::create(directory.join(CONSOLE)).unwrap();
        console.write_all(b"berth: power on\n").unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let turns = Turns(Arc::new(Semaphore::new(1)));
        let turn = turns.next().await.unwrap();
        let raised = turn.raise(child.id().try_into().unwrap(), &directory).unwrap();
        assert_eq!(policy(child.id()), libc::SCHED_RR.to_string());
        assert_eq!(turns.0.available_permits(), 0);
        assert!(!raised.guest_init_runs(STEP).await);
        console.write_all(b"berth: guest-init runs\n").unwrap();
        assert!(raised.guest_init_runs(PATIENCE[2]).await);
        drop(raised);
        assert_eq!(policy(child.id()), libc::SCHED_OTHER.to_string());
        assert_eq!(turns.0.available_permits(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir_all(directory).unwrap();
    }
}
