//! The console is the only place where a machine that cannot boot can say so.

use std::{fs::OpenOptions, io::Write as _};

use rustix::{fs::OFlags, stdio};

use crate::error::Error;

/// Makes the console our standard streams: the kernel opens it only when the
/// initramfs has a node for it.
pub fn attach() {
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    if let Ok(console) = rustix::fs::open("/dev/console", flags, rustix::fs::Mode::empty()) {
        let _ = stdio::dup2_stdin(&console);
        let _ = stdio::dup2_stdout(&console);
        let _ = stdio::dup2_stderr(&console);
    }
}

/// One line, which hostd keeps and may read.
pub fn say(line: &str) {
    let line = format!("berth: {line}\n");
    // Nobody is left to tell that telling failed.
    if rustix::io::write(stdio::stdout(), line.as_bytes()).is_err()
        && let Ok(mut kernel) = OpenOptions::new().write(true).open("/dev/kmsg")
    {
        let _ = kernel.write_all(line.as_bytes());
    }
}

/// For what a machine can be without.
pub fn report(result: Result<(), Error>) {
    if let Err(error) = result {
        say(&error.line());
    }
}
