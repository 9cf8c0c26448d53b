//! A shell that is run for nobody. Where guests are emulated, all code that runs
//! for the first time after a resume has to be translated, and a first command
//! waits for little else. So while the host repairs a machine on one CPU, the
//! others are made ready for what comes next.
//!
//! A capture is made between a freeze and the thaw after it, and nothing tells a
//! guest that it was away. So a process looks again and again, from the one to the
//! other, who emulates it (`incarnation`), and begins when that is somebody else.

use std::{
    fs,
    io::{self, PipeReader},
    path::Path,
    sync::{
        Arc, OnceLock,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
};

use crate::{
    control::freeze::Freezer,
    error::{Context, Result},
    exec,
    guest::{self, Guest},
};

/// As a shell's start-up file begins on Debian, which a command by ssh reads.
const SCRIPT: &str = "case $- in *i*) ;; *) return ;; esac\n";
/// Where no user has put anything.
const PLACE: &str = "/run/berth/rehearsal";
/// Who is asked for a rehearsal; nobody where no CPU is to spare.
#[derive(Debug, Default)]
pub struct Rehearser(OnceLock<SyncSender<PipeReader>>);

/// Waits to be asked, from now on.
pub fn start(guest: &Arc<Guest>) -> Result<()> {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Ok(());
    }
    let (asked, asks) = sync_channel(1);
    let rehearsing = Arc::clone(guest);
    guest::spawn("rehearsal", move || {
        // It hears that the shell has begun, which is of no interest to anybody who
        // has something to do. The shell itself is as urgent as any.
        guest::yield_to_others();
        for heard in asks {
            // Without it a first command is slower, and that is all.
            let _ = exec::rehearse(&rehearsing, &heard, &format!(". {PLACE}"));
        }
    })?;
    let _ = guest.rehearser.0.set(asked);
    Ok(())
}

impl Rehearser {
    /// In the next freeze. One that is still under way is enough.
    pub fn ask(&self, freezer: &Freezer) -> Result<()> {
        let Some(asked) = self.0.get() else { return Ok(()) };
        if !Path::new(PLACE).exists() {
            fs::write(PLACE, SCRIPT).during("write", PLACE)?;
        }
        let (heard, word) = io::pipe().during("make", "a pipe")?;
        freezer.tell(word);
        let _ = asked.try_send(heard);
        Ok(())
    }
}
