//! A shell that is run for nobody. Where guests are emulated, all code that runs
//! for the first time after a resume has to be translated, and a first command
//! waits for little else. So while the host repairs a machine on one CPU, the
//! others are made ready for what comes next.
//!
//! Nothing tells a guest that it was away. Between a freeze and the thaw after
//! it there is nothing else to do, though, and a capture is made there: who then
//! waits for a moment of guest time wakes up after the resume.

use std::{fs, sync::Arc, thread};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    time::Timespec,
};

use crate::{
    error::{Context, Error, Result},
    exec,
    guest::{self, Guest},
};

/// What the kernel's command line says where it pays.
const WORD: &str = "berth.rehearse";
/// As a shell's start-up file begins on Debian, which a command by ssh reads.
const SCRIPT: &str = "case $- in *i*) ;; *) return ;; esac\n";
/// Where no user has put anything.
const PLACE: &str = "/run/berth/rehearsal";
/// Longer than a host takes from the freeze to the capture, mostly.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// A host that takes longer must not be kept busy by us.
const ROUNDS: usize = 10;

/// Rehearses in every freeze from now on, if there is a CPU to spare.
pub fn start(guest: &Arc<Guest>) -> Result<()> {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 || !line.split_whitespace().any(|word| word == WORD) {
        return Ok(());
    }
    fs::write(PLACE, SCRIPT).during("write", PLACE)?;
    let guest = Arc::clone(guest);
    // Without it a first command is slower, and that is all.
    guest::spawn("rehearsal", move || while rehearse(&guest).is_ok() {})
}

/// Returns after a freeze.
fn rehearse(guest: &Guest) -> Result<()> {
    let before = guest.freezer.freezes();
    for _ in 0..ROUNDS {
        let (word, shell) = exec::rehearsal(guest, &format!(". {PLACE}"), &MOMENT)?;
        guest.freezer.tell(word);
        poll(&mut [PollFd::new(&shell, PollFlags::IN)], None).during("await", "a shell")?;
        if guest.freezer.freezes() == before {
            // Somebody ended it, and might again.
            return Err(Error::new("rehearse", "a shell", Errno::CHILD.into()));
        }
        if !guest.freezer.is_frozen() {
            return Ok(());
        }
    }
    drop(guest.freezer.admit());
    Ok(())
}
