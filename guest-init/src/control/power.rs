//! The end of a machine: processes are asked, then made, to end; the disk is
//! left clean; the console says which end it was, so that hostd knows.

use std::{path::Path, sync::Mutex, time::Duration};

use berth_guest_protocol::Shutdown;
use rustix::{
    process::{Pid, Signal, kill_process},
    system::{RebootCommand, reboot},
};

use crate::{boot, guest::Guest};

/// For those who want to say goodbye. Most do so in milliseconds.
const GRACE: Duration = Duration::from_secs(5);
const DEATH: Duration = Duration::from_secs(2);
/// For streams to tell the exits of what was just ended.
const GOODBYE: Duration = Duration::from_secs(1);

/// Whoever comes second waits for the end with the first.
static ENDING: Mutex<()> = Mutex::new(());

/// Does not return.
pub fn end(guest: &Guest, how: Shutdown) {
    let _ending = ENDING.lock();
    // Without ACPI a machine cannot switch itself off: a restart, which the
    // hypervisor takes for an end, is the only one there is. Looked for while
    // /sys is still mounted.
    let command = match how {
        Shutdown::PowerOff if Path::new("/sys/firmware/acpi").exists() => RebootCommand::PowerOff,
        Shutdown::PowerOff | Shutdown::Reboot => RebootCommand::Restart,
    };
    stop_processes(guest);
    guest.streams.end_all(GOODBYE);
    rustix::fs::sync();
    boot::report(boot::release());
    boot::say(match how {
        Shutdown::PowerOff => "power off",
        Shutdown::Reboot => "reboot",
    });
    if let Err(error) = reboot(command) {
        boot::say(&format!("the kernel refused to end: {error}"));
    }
}

fn stop_processes(guest: &Guest) {
    // A frozen process could not even be told.
    boot::report(guest.freezer.thaw());
    // An interactive shell ignores TERM; HUP is what ends it.
    for signal in [Signal::TERM, Signal::HUP, Signal::CONT] {
        for pid in guest.freezer.processes().into_iter().filter_map(Pid::from_raw) {
            // It may have gone between being listed and being told.
            let _ = kill_process(pid, signal);
        }
    }
    if !guest.freezer.await_empty(GRACE) {
        boot::report(guest.freezer.kill());
        guest.freezer.await_empty(DEATH);
    }
}
