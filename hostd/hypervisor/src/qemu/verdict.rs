//! Why a machine ended, from three witnesses: the kernel (how the process
//! went), QEMU (its last event) and the guest (its console). The guest may lie,
//! but only about itself, and only where nobody else knows better.

use crate::{Exit, process::End};
use qapi::qmp::ShutdownCause;

/// Written to the console by the driver before each run, so that an earlier
/// run's last words are not taken for this one's.
pub(super) const BOOTED: &str = "berth: power on";
pub(super) const RESTORED: &str = "berth: restored";
/// Written by guest-init as its last act.
const POWERED_OFF: &str = "berth: power off";
const REBOOTED: &str = "berth: reboot";
/// Written by Linux.
const PANICKED: &str = "Kernel panic - not syncing";

pub(super) fn verdict(end: End, cause: Option<ShutdownCause>, console: &str) -> Exit {
    match (end, cause) {
        (End::Signal(signal), _) => Exit::Signal(signal),
        (_, Some(ShutdownCause::guest_shutdown | ShutdownCause::host_qmp_quit)) => Exit::Clean,
        (_, Some(ShutdownCause::guest_panic)) => Exit::Panic,
        // A kernel that dies resets the machine too, and so does one that knows
        // no way to switch off: the console tells which it was.
        (_, Some(ShutdownCause::guest_reset)) => last_words(console).unwrap_or(Exit::Reboot),
        // QEMU ends in order on a TERM, but its guest did not.
        (_, Some(ShutdownCause::host_signal)) => Exit::Signal(nix::libc::SIGTERM),
        (End::Status(0), _) => last_words(console).unwrap_or(Exit::Status(0)),
        (End::Status(status), _) => Exit::Status(status),
        (End::Untold, _) => last_words(console).unwrap_or(Exit::Unknown),
    }
}

fn last_words(console: &str) -> Option<Exit> {
    // No line of ours starts the words where a prompt was left standing.
    let line = |line: &str| {
        [(POWERED_OFF, Some(Exit::Clean)), (REBOOTED, Some(Exit::Reboot)), (PANICKED, Some(Exit::Panic))]
            .into_iter()
            .chain([(BOOTED, None), (RESTORED, None)])
            .find_map(|(words, exit)| line.contains(words).then_some(exit))
    };
    console.lines().rev().find_map(line).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: &str = "berth: power on\nhello\nberth: power off\n";
    const AGAIN: &str = "berth: power on\nlogin: berth: reboot\n";
    const DEAD: &str =
        "berth: power on\n[ 3.1] Kernel panic - not syncing: sysrq triggered crash\n[ 3.2] ---[ end";

    #[test]
    fn the_hypervisors_event_decides() {
        let ended = |cause, console| verdict(End::Status(0), Some(cause), console);
        assert_eq!(ended(ShutdownCause::guest_shutdown, ""), Exit::Clean);
        assert_eq!(ended(ShutdownCause::guest_shutdown, DEAD), Exit::Clean);
        assert_eq!(ended(ShutdownCause::guest_reset, AGAIN), Exit::Reboot);
        assert_eq!(ended(ShutdownCause::guest_reset, ""), Exit::Reboot);
        assert_eq!(ended(ShutdownCause::guest_reset, DEAD), Exit::Panic);
        assert_eq!(ended(ShutdownCause::guest_reset, OFF), Exit::Clean);
        assert_eq!(ended(ShutdownCause::guest_panic, ""), Exit::Panic);
        assert_eq!(ended(ShutdownCause::host_qmp_quit, ""), Exit::Clean);
        assert_eq!(ended(ShutdownCause::host_signal, ""), Exit::Signal(15));
    }

    #[test]
    fn a_killed_process_was_killed_whatever_was_said_before() {
        assert_eq!(verdict(End::Signal(9), Some(ShutdownCause::guest_shutdown), OFF), Exit::Signal(9));
        assert_eq!(verdict(End::Signal(31), None, ""), Exit::Signal(31));
    }

    #[test]
    fn without_an_event_the_console_is_asked() {
        assert_eq!(verdict(End::Untold, None, OFF), Exit::Clean);
        assert_eq!(verdict(End::Untold, None, AGAIN), Exit::Reboot);
        assert_eq!(verdict(End::Status(0), None, DEAD), Exit::Panic);
        assert_eq!(verdict(End::Untold, None, ""), Exit::Unknown);
        assert_eq!(verdict(End::Status(0), None, "noise"), Exit::Status(0));
    }

    #[test]
    fn a_failed_process_failed() {
        assert_eq!(verdict(End::Status(1), None, OFF), Exit::Status(1));
    }

    #[test]
    fn earlier_runs_do_not_count() {
        let again = format!("{DEAD}\n{OFF}berth: power on\nhello\n");
        assert_eq!(verdict(End::Untold, None, &again), Exit::Unknown);
        assert_eq!(verdict(End::Status(0), Some(ShutdownCause::guest_reset), &again), Exit::Reboot);
        let restored = format!("{DEAD}\nberth: restored\nhello\n");
        assert_eq!(verdict(End::Untold, None, &restored), Exit::Unknown);
    }
}
