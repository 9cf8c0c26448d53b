//! Does this host's kernel have the Landlock that Cloud Hypervisor asks for?
//! It asks for all of it or fails, and Debian 12's own kernel is a little older:
//! there a machine has its user, its namespace and seccomp, and does without.

use nix::libc;

/// Since Linux 6.2: files may be kept from being truncated too.
const NEEDED: i64 = 3;
const ASK_VERSION: libc::c_uint = 1;

pub fn is_there() -> bool {
    version() >= NEEDED
}

/// Negative where there is none.
#[allow(unsafe_code)]
fn version() -> i64 {
    // SAFETY: asked for its version it takes no pointer, and changes nothing.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, ASK_VERSION) }
}
