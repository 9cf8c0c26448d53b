//! What the process gives up before it reads anything.
//!
//! In this order: capabilities and the user, then files, then system calls. Threads are
//! started later and inherit all of it.

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetError, Scope};
use nix::{
    errno::Errno,
    sys::resource::{Resource, setrlimit},
    unistd::{Gid, Uid, setgid, setgroups, setuid},
};
use std::io;

/// Threads of this user: the runtime's, with room for its blocking ones.
const THREADS: u64 = 1024;
/// More than any kernel has: it says itself where its capabilities end.
const CAPABILITIES: libc::c_ulong = 64;

/// Becomes this user, for good, and keeps what a proxy needs: the sockets that it is
/// given, and connections of its own.
pub fn harden(uid: u32, gid: u32) -> io::Result<()> {
    if uid == 0 || gid == 0 {
        return Err(io::Error::other("the bridge must not run as root: name another user"));
    }
    empty_the_bounding_set()?;
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
    setrlimit(Resource::RLIMIT_NPROC, THREADS, THREADS)?;
    setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0)?;
    setrlimit(Resource::RLIMIT_MSGQUEUE, 0, 0)?;
    close_files().map_err(io::Error::other)?;
    super::syscalls::restrict()
}

/// No program that this one could start would have any capability either.
#[allow(unsafe_code)]
fn empty_the_bounding_set() -> io::Result<()> {
    for capability in 0..CAPABILITIES {
        // SAFETY: a system call with numbers for arguments.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        match Errno::result(dropped) {
            Ok(_) => {}
            Err(Errno::EINVAL) => break,
            // A unit of an earlier release leaves hostd no CAP_SETPCAP. Without new
            // privileges the set is of no use to anybody; the rest is given up anyway.
            Err(Errno::EPERM) => {
                tracing::warn!("the bounding set stays: give hostd CAP_SETPCAP");
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// No file is opened from now on, no port bound for TCP, and no socket or process of the
/// host's reached. As far as the kernel has Landlock: the filter of system calls says
/// much of it again.
fn close_files() -> Result<(), RulesetError> {
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .restrict_self()?;
    tracing::debug!(?status, "files are closed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread of its own, so that only it gives anything up.
    fn alone<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(test).join().unwrap()
    }

    #[test]
    fn no_file_is_opened_under_landlock() {
        // Kernels without it are those that the filter of system calls is for.
        if !has_landlock() {
            return;
        }
        let (read, written, bound) = alone(|| {
            nix::sys::prctl::set_no_new_privs().unwrap();
            close_files().unwrap();
            let bound = std::net::TcpListener::bind("127.0.0.1:0").map(drop);
            (std::fs::read("/etc/passwd"), std::fs::write("/tmp/berth-landlock", ""), bound)
        });
        for error in [read.map(drop).unwrap_err(), written.unwrap_err(), bound.unwrap_err()] {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
    }

    #[allow(unsafe_code)]
    fn has_landlock() -> bool {
        const ASK_VERSION: libc::c_uint = 1;
        // SAFETY: asked for its version it takes no pointer, and changes nothing.
        let version = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, ASK_VERSION)
        };
        // The first that restricts TCP.
        version >= 4
    }
}
