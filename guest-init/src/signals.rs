//! Signals by the names that RFC 4254 gives them: without SIG.

use rustix::process::Signal;

const NAMES: [(&str, i32); 31] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STKFLT", libc::SIGSTKFLT),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

pub fn by_name(name: &str) -> Option<Signal> {
    NAMES.iter().find(|(known, _)| *known == name).and_then(|&(_, number)| Signal::from_named_raw(number))
}

/// Signals without a name, the real-time ones, are told by number.
pub fn name(number: i32) -> String {
    NAMES
        .iter()
        .find(|(_, known)| *known == number)
        .map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_signal_and_comes_back() {
        for (known, number) in NAMES {
            assert_eq!(by_name(known).map(Signal::as_raw), Some(number), "{known}");
            assert_eq!(name(number), known);
        }
        assert_eq!(by_name("SIGTERM"), None);
        assert_eq!(name(40), "40");
    }
}
