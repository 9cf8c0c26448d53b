//! What the process gives up before it reads anything.

use nix::unistd::{getegid, geteuid};
use std::io;

pub fn harden() -> io::Result<()> {
    if geteuid().is_root() || getegid().as_raw() == 0 {
        return Err(io::Error::other("the bridge must not run as root: hostd starts it as another user"));
    }
    // No core dumps, no ptrace and no /proc/PID/mem, even for the same user.
    nix::sys::prctl::set_dumpable(false)?;
    nix::sys::prctl::set_no_new_privs()?;
    Ok(())
}
