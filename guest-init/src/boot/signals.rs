//! `reboot` and `poweroff` inside the machine are signals to PID 1.

use std::{io, mem::MaybeUninit};

use berth_guest_protocol::Shutdown;

use crate::{
    control::power,
    error::{Context, Result},
    guest::Guest,
};

pub const REBOOT: i32 = libc::SIGTERM;
pub const POWER_OFF: i32 = libc::SIGUSR2;

/// The signals that are waited for, blocked in every thread.
pub struct Waiting(libc::sigset_t);

/// Must come before any thread is started: they inherit it. So would processes,
/// which is undone between fork and exec.
#[allow(unsafe_code)]
pub fn block() -> Result<Waiting> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set that the other calls read, and
    // each of them gets a valid pointer.
    let (set, error) = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for signal in [REBOOT, POWER_OFF, libc::SIGINT] {
            libc::sigaddset(&raw mut set, signal);
        }
        (set, libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))
    };
    if error == 0 {
        Ok(Waiting(set))
    } else {
        Err(io::Error::from_raw_os_error(error)).during("block", "signals")
    }
}

impl Waiting {
    pub fn serve(&self, guest: &Guest) {
        loop {
            match self.next() {
                REBOOT | libc::SIGINT => power::end(guest, Shutdown::Reboot),
                POWER_OFF => power::end(guest, Shutdown::PowerOff),
                _ => {}
            }
        }
    }

    #[allow(unsafe_code)]
    fn next(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: the set is initialised and `signal` is valid for a write.
        unsafe { libc::sigwait(&raw const self.0, &raw mut signal) };
        signal
    }
}
