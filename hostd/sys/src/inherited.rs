//! What a program is started with, beside its arguments, is the starter's: descriptors,
//! blocked signals, ignored signals. It goes on to whatever the program starts, unless the
//! program ends it.

use std::{io, ptr};

/// As many signals as the kernel has, and a set of them has bits.
const SIGNALS: libc::c_int = 64;
/// The first descriptor after the standard ones.
const FIRST: libc::c_uint = 3;

/// What a daemon does before anything else, with one thread and nothing opened: it closes
/// every descriptor but the standard ones, and has no signal blocked and none ignored but
/// SIGPIPE, as every Rust program, and SIGHUP where it was started so.
pub fn shed() -> io::Result<()> {
    plain_signals(&[libc::SIGPIPE, libc::SIGHUP]);
    close_range(0)
}

/// Keeps every descriptor but the standard ones from the next program.
pub fn close_on_exec() -> io::Result<()> {
    close_range(libc::CLOSE_RANGE_CLOEXEC)
}

#[allow(unsafe_code)]
fn close_range(flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: it takes plain numbers. What is closed was opened by another program: nothing
    // in this one owns it yet.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives every signal but `kept` its default disposition, and blocks none.
#[allow(unsafe_code)]
pub fn plain_signals(kept: &[libc::c_int]) {
    let size = SIGNALS / 8;
    // The kernel's own sigaction, all zeroes: SIG_DFL, no flags, an empty mask. libc
    // keeps two signals to itself, which may be ignored too.
    let zero = [0_u64; 4];
    // SAFETY: rt_sigaction reads `zero`, which is as large as the kernel's structure, and
    // rt_sigprocmask its first word. A signal that cannot be changed is refused, which
    // changes nothing.
    unsafe {
        for signal in (1..=SIGNALS).filter(|signal| !kept.contains(signal)) {
            libc::syscall(libc::SYS_rt_sigaction, signal, zero.as_ptr(), ptr::null_mut::<u64>(), size);
        }
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            zero.as_ptr(),
            ptr::null_mut::<u64>(),
            size,
        );
    }
}
