//! Why a machine ended, from three witnesses: the kernel (how the process
//! went), the hypervisor (its last event) and the guest (its console). The guest may lie,
//! but only about itself, and only where nobody else knows better.

use crate::{Exit, process::End};

/// What a hypervisor said of its own accord before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The guest switched itself off, or hostd asked for the end.
    Shutdown,
    /// The guest reset itself: a reboot, or a kernel that died.
    Reset,
    Panic,
    /// A signal that the process took as a wish.
    Signal,
}

/// Written to the console by the driver before each run, so that an earlier
/// run's last words are not taken for this one's.
pub(crate) const BOOTED: &str = "berth: power on";
pub(crate) const RESTORED: &str = "berth: restored";
/// Written by guest-init as its last act.
const POWERED_OFF: &str = "berth: power off";
const REBOOTED: &str = "berth: reboot";
/// Written by Linux.
const PANICKED: &str = "Kernel panic - not syncing";

pub(crate) fn verdict(end: End, cause: Option<Cause>, console: &str) -> Exit {
    match (end, cause) {
        (End::Signal(signal), _) => Exit::Signal(signal),
        (_, Some(Cause::Shutdown)) => Exit::Clean,
        (_, Some(Cause::Panic)) => Exit::Panic,
        // A kernel that dies resets the machine too, and so does one that knows
        // no way to switch off: the console tells which it was.
        (_, Some(Cause::Reset)) => last_words(console).unwrap_or(Exit::Reboot),
        // The process ended in order, but its guest did not.
        (_, Some(Cause::Signal)) => Exit::Signal(nix::libc::SIGTERM),
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
        assert_eq!(ended(Cause::Shutdown, ""), Exit::Clean);
        assert_eq!(ended(Cause::Shutdown, DEAD), Exit::Clean);
        assert_eq!(ended(Cause::Reset, AGAIN), Exit::Reboot);
        assert_eq!(ended(Cause::Reset, ""), Exit::Reboot);
        assert_eq!(ended(Cause::Reset, DEAD), Exit::Panic);
        assert_eq!(ended(Cause::Reset, OFF), Exit::Clean);
        assert_eq!(ended(Cause::Panic, ""), Exit::Panic);
        assert_eq!(ended(Cause::Signal, ""), Exit::Signal(15));
    }

    #[test]
    fn a_killed_process_was_killed_whatever_was_said_before() {
        assert_eq!(verdict(End::Signal(9), Some(Cause::Shutdown), OFF), Exit::Signal(9));
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
        assert_eq!(verdict(End::Status(0), Some(Cause::Reset), &again), Exit::Reboot);
        let restored = format!("{DEAD}\nberth: restored\nhello\n");
        assert_eq!(verdict(End::Untold, None, &restored), Exit::Unknown);
    }
}
