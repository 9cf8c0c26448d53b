//! Sets right what time and copying broke: the clock, the randomness and, in a
//! fork, the identity. It runs while the user's processes stand still, so none
//! of them ever sees the state before.

use std::{fs, io, path::Path};

use berth_guest_protocol::Repair;
use rustix::{
    fs::{Mode, OFlags},
    ioctl,
    time::{ClockId, Timespec, clock_settime},
};

use crate::{
    boot,
    error::{Context, Result},
    guest::Guest,
};

const MACHINE_ID: &str = "/etc/machine-id";
const DBUS_ID: &str = "/var/lib/dbus/machine-id";

/// What is wrong here could harm the user, so it fails; a disk that is full
/// could not, so files are written as far as they can be.
pub fn run(guest: &Guest, repair: &Repair) -> Result<()> {
    set_clock(repair.clock)?;
    reseed(&repair.entropy)?;
    let mut known = guest.known();
    if known.hostname != repair.hostname {
        let write = if guest.freezer.is_frozen() { boot::overwrite } else { boot::write_changed };
        boot::set_hostname(&repair.hostname, write)?;
        known.hostname.clone_from(&repair.hostname);
    }
    if repair.renew_identity {
        boot::report(renew_identity());
    }
    if known.disk != repair.disk {
        boot::report(boot::grow_disk(repair.disk));
        known.disk = repair.disk;
    }
    guest.freezer.thaw()
}

fn set_clock(nanoseconds: u64) -> Result<()> {
    const SECOND: u64 = 1_000_000_000;
    let time = || -> io::Result<Timespec> {
        Ok(Timespec {
            tv_sec: i64::try_from(nanoseconds / SECOND).map_err(io::Error::other)?,
            tv_nsec: i64::try_from(nanoseconds % SECOND).map_err(io::Error::other)?,
        })
    };
    time().and_then(|time| Ok(clock_settime(ClockId::Realtime, time)?)).during("set", "the clock")
}

/// `struct rand_pool_info` with its bytes.
#[repr(C)]
struct Pool {
    bits: i32,
    size: i32,
    bytes: [u8; 32],
}

const ADD_ENTROPY: ioctl::Opcode = ioctl::opcode::write::<[i32; 2]>(b'R', 3);
const RESEED: ioctl::Opcode = ioctl::opcode::none(b'R', 7);

/// Mixed in first, then forced into use: until then twins would draw the same.
#[allow(unsafe_code)]
fn reseed(entropy: &[u8; 32]) -> Result<()> {
    let random = rustix::fs::open("/dev/urandom", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .during("open", "/dev/urandom")?;
    let pool = Pool { bits: 256, size: 32, bytes: *entropy };
    // SAFETY: RNDADDENTROPY reads a rand_pool_info and the `size` bytes behind
    // it, which `Pool` is; RNDRESEEDCRNG takes no argument.
    unsafe {
        ioctl::ioctl(&random, ioctl::Setter::<ADD_ENTROPY, Pool>::new(pool))
            .and_then(|()| ioctl::ioctl(&random, ioctl::NoArg::<RESEED>::new()))
    }
    .during("reseed", "/dev/urandom")
}

fn renew_identity() -> Result<()> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .during("draw", "an identity")?;
    let text = bytes.map(|byte| format!("{byte:02x}")).concat() + "\n";
    boot::overwrite(MACHINE_ID, &text)?;
    if fs::symlink_metadata(DBUS_ID).is_ok_and(|found| found.is_file()) {
        boot::overwrite(DBUS_ID, &text)?;
    }
    for entry in fs::read_dir("/etc/ssh").into_iter().flatten().flatten() {
        if is_host_key(&entry.path()) {
            boot::report(fs::remove_file(entry.path()).during("remove", entry.path().display()));
        }
    }
    Ok(())
}

/// Two machines must not share one; whoever installs an sshd makes its own.
fn is_host_key(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
        name.strip_prefix("ssh_host_")
            .is_some_and(|rest| rest.ends_with("_key") || rest.ends_with("_key.pub"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_host_keys_are_removed() {
        assert!(is_host_key(Path::new("/etc/ssh/ssh_host_ed25519_key")));
        assert!(is_host_key(Path::new("/etc/ssh/ssh_host_rsa_key.pub")));
        assert!(!is_host_key(Path::new("/etc/ssh/ssh_config")));
        assert!(!is_host_key(Path::new("/etc/ssh/ssh_host_notes")));
    }
}
