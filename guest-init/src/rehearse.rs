//! A shell that is run for nobody. Where guests are emulated, all code that runs
//! for the first time after a resume has to be translated, and a first command
//! waits for little else. So while the host repairs a machine on one CPU, the
//! others are made ready for what comes next.
//!
//! Nothing tells a guest that it was away. Between a freeze and the thaw after
//! it there is nothing else to do, though, and a capture is made there: who then
//! waits for a moment of guest time wakes up after the resume.

use std::{fs, path::Path, thread};

use rustix::time::Timespec;

use crate::{
    error::{Context, Result},
    exec::{self, Moment},
    guest::Guest,
};

/// As a shell's start-up file begins on Debian, which a command by ssh reads.
const SCRIPT: &str = "case $- in *i*) ;; *) return ;; esac\n";
/// Where no user has put anything.
const PLACE: &str = "/run/berth/rehearsal";
/// Longer than a host takes from the freeze to the capture, mostly. Where nothing has
/// to be translated, after a mere pause, one wakes up in time.
const MOMENT: Moment = Moment { after: milliseconds(10), late: milliseconds(2) };

const fn milliseconds(count: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: count * 1_000_000 }
}

/// For the next freeze, if there is a CPU to spare.
pub fn prepare(guest: &Guest) -> Result<()> {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Ok(());
    }
    if !Path::new(PLACE).exists() {
        fs::write(PLACE, SCRIPT).during("write", PLACE)?;
    }
    guest.freezer.tell(exec::rehearsal(guest, &format!(". {PLACE}"), &MOMENT)?);
    Ok(())
}
