//! What the process gives up before it reads anything.

use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use std::io;

/// Becomes this user, for good.
pub fn harden(uid: u32, gid: u32) -> io::Result<()> {
    if uid == 0 || gid == 0 {
        return Err(io::Error::other("the bridge must not run as root: name another user"));
    }
    setgroups(&[])?;
    setgid(Gid::from_raw(gid))?;
    // Leaving uid 0 for good drops every capability.
    setuid(Uid::from_raw(uid))?;
    if setuid(Uid::from_raw(0)).is_ok() {
        return Err(io::Error::other("root was not left"));
    }
    nix::sys::prctl::set_no_new_privs()?;
    // No core dumps, no ptrace and no /proc/PID/mem, even for the same user.
    nix::sys::prctl::set_dumpable(false)?;
    Ok(())
}
