//! Reaps every process that ends here: our own children, whose streams wait
//! for the outcome, and the orphans that only PID 1 can bury.
//!
//! A process is only collected under the table's lock, and a child is entered
//! under the same lock in which it was made. So a status can neither arrive
//! before its owner nor go to a later process with the same number.

use std::{
    collections::HashMap,
    fs,
    io::{self, PipeReader, PipeWriter, Read, Write},
    mem::MaybeUninit,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use berth_guest_protocol::Exit;
use rustix::{io::Errno, process::Pid};

use crate::signals;

/// What a child is to the machine's vitals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A command without a terminal.
    Command,
    /// A shell in a terminal: busy when another job has the foreground.
    Shell,
    /// A command in a terminal: the job itself.
    Job,
    /// Our own errand.
    Errand,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Census {
    pub commands: u32,
    pub terminals: u32,
    pub busy_terminals: u32,
}

#[derive(Debug)]
pub struct Child {
    pub pid: Pid,
    /// Becomes readable when the child has been reaped.
    pub exit: PipeReader,
}

#[derive(Debug, Default)]
pub struct Children {
    table: Mutex<Table>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<i32, Entry>,
    /// There may be a child that nobody waits for.
    others: bool,
}

#[derive(Debug)]
struct Entry {
    role: Role,
    exit: PipeWriter,
}

impl Children {
    pub fn spawn(&self, start: impl FnOnce() -> io::Result<Pid>, role: Role) -> io::Result<Child> {
        let (reader, writer) = io::pipe()?;
        let mut table = self.table();
        let started = start();
        // One that failed may have left a process to be buried.
        table.others |= started.is_err();
        self.arrived.notify_one();
        let pid = started?;
        table.entries.insert(pid.as_raw_nonzero().get(), Entry { role, exit: writer });
        Ok(Child { pid, exit: reader })
    }

    /// There is a child that nobody waits for.
    pub fn bury_others(&self) {
        self.table().others = true;
        self.arrived.notify_one();
    }

    /// The reaper's life.
    pub fn reap_forever(&self) {
        loop {
            match peek() {
                Ok(pid) => self.collect(pid),
                Err(Errno::CHILD) => {
                    // No child means no orphan either: only a spawn can change that.
                    let mut table = self.table();
                    if table.entries.is_empty() && !std::mem::take(&mut table.others) {
                        drop(self.arrived.wait(table));
                    }
                }
                Err(_) => {}
            }
        }
    }

    fn collect(&self, pid: i32) {
        let mut table = self.table();
        let Some(outcome) = take(pid) else { return };
        if let Some(mut entry) = table.entries.remove(&pid) {
            // Nobody reads it when the stream is gone.
            let _ = entry.exit.write_all(&outcome);
        }
    }

    pub fn census(&self) -> Census {
        let mut census = Census::default();
        for (&pid, entry) in &self.table().entries {
            match entry.role {
                Role::Errand => {}
                Role::Command => census.commands += 1,
                Role::Job => {
                    census.terminals += 1;
                    census.busy_terminals += 1;
                }
                Role::Shell => {
                    census.terminals += 1;
                    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
                    census.busy_terminals += u32::from(foreground(&stat).is_some_and(|group| group != pid));
                }
            }
        }
        census
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Child {
    /// The outcome, once `exit` is readable (or by waiting for it).
    pub fn outcome(&mut self) -> io::Result<Exit> {
        let mut bytes = [0; 2];
        self.exit.read_exact(&mut bytes)?;
        Ok(decode(bytes))
    }
}

/// The process group in the foreground of the terminal of the process whose
/// `/proc/PID/stat` this is. The name in it may hold anything, `)` included.
fn foreground(stat: &[u8]) -> Option<i32> {
    let after = stat.rsplitn(2, |&b| b == b')').next()?;
    let field = after.split(|&b| b == b' ').filter(|field| !field.is_empty()).nth(5)?;
    std::str::from_utf8(field).ok()?.parse().ok().filter(|&group| group > 0)
}

const EXITED: u8 = 0;
const KILLED: u8 = 1;
const DUMPED: u8 = 2;

fn decode([code, value]: [u8; 2]) -> Exit {
    match code {
        KILLED | DUMPED => Exit::Signal { name: signals::name(value.into()), core: code == DUMPED },
        _ => Exit::Status(value),
    }
}

/// Waits until some child has ended, and leaves it to be collected.
#[allow(unsafe_code)]
fn peek() -> Result<i32, Errno> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is valid for writes; a zeroed siginfo_t is a valid one,
    // and waitid fills the fields that si_pid reads.
    unsafe {
        match libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) {
            0 => Ok(info.assume_init().si_pid()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INTR)),
        }
    }
}

/// Collects one child that has ended.
#[allow(unsafe_code)]
fn take(pid: i32) -> Option<[u8; 2]> {
    let id = libc::id_t::try_from(pid).ok()?;
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: as in `peek`; WNOHANG leaves the zeroes when there is nothing.
    let info = unsafe {
        if libc::waitid(libc::P_PID, id, info.as_mut_ptr(), libc::WEXITED | libc::WNOHANG) != 0 {
            return None;
        }
        info.assume_init()
    };
    // SAFETY: waitid filled or zeroed the fields of a child's siginfo_t.
    let (found, status) = unsafe { (info.si_pid(), info.si_status()) };
    let code = match info.si_code {
        libc::CLD_KILLED => KILLED,
        libc::CLD_DUMPED => DUMPED,
        _ => EXITED,
    };
    (found == pid).then(|| [code, u8::try_from(status & 0xff).unwrap_or(u8::MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{process::Command, sync::Arc, thread};

    fn start(command: &mut Command) -> io::Result<Pid> {
        Ok(Pid::from_child(&command.spawn()?))
    }

    #[test]
    fn every_child_gets_its_own_outcome() {
        let children = Arc::new(Children::default());
        let reaper = Arc::clone(&children);
        thread::spawn(move || reaper.reap_forever());
        let mut running: Vec<_> = (0..20)
            .map(|n| {
                let mut command = Command::new("/bin/sh");
                command.args(["-c", &format!("exit {n}")]);
                (n, children.spawn(|| start(&mut command), Role::Command).unwrap())
            })
            .collect();
        for (n, child) in &mut running {
            assert_eq!(child.outcome().unwrap(), Exit::Status(*n));
        }
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "kill -TERM $$"]);
        let mut child = children.spawn(|| start(&mut command), Role::Command).unwrap();
        assert_eq!(child.outcome().unwrap(), Exit::Signal { name: "TERM".into(), core: false });
        assert!(children.spawn(|| start(&mut Command::new("/nonexistent")), Role::Command).is_err());
        assert_eq!(children.census(), Census::default());
        // One that is in no table is buried all the same.
        let nobodys = start(&mut Command::new("/bin/true")).unwrap();
        children.bury_others();
        while rustix::process::test_kill_process(nobodys).is_ok() {
            thread::yield_now();
        }
    }

    #[test]
    fn the_foreground_group_is_found_behind_any_name() {
        assert_eq!(foreground(b"12 (a ) b) S 1 12 12 34816 77 4194304 0"), Some(77));
        assert_eq!(foreground(b"12 (sh) S 1 12 12 0 -1 4194304 0"), None);
        assert_eq!(foreground(b""), None);
    }
}
