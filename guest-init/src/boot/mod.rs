//! From the kernel's hand-over to a machine that answers:
//!
//! ```text
//! initramfs: /proc /sys /dev → modules → disk at /newroot, grown → switch root
//! the disk:  /dev/pts /run cgroup → eth0, lo | ctl0 in its own namespace → serve
//! ```
//!
//! What a machine cannot be without fails the boot, and the console says why.
//! What it can be without is reported there and passed over.

mod cgroup;
mod console;
mod disk;
mod modules;
mod mounts;
mod names;
mod net;
mod netlink;
mod signals;

use std::{path::Path, sync::Arc};

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{
    account::Who,
    control::freeze::Freezer,
    error::{Context, Result},
    guest::{self, Guest},
    rehearse, server,
};

pub use console::{report, say};
pub use mounts::release;
pub use names::{overwrite, set_hostname, write_changed};

/// Where programs of the machine find this one.
pub const PROGRAM: &str = "/run/berth/guest-init";
/// Streams and terminals cost descriptors; the default of 1024 is a shell's.
const FILES: u64 = 65_536;

/// Grows the root filesystem to a disk of that size.
pub fn grow_disk(size: u64) -> Result<()> {
    disk::grow_to(Path::new("/"), size)
}

/// Never returns but with the reason why there is no machine.
pub fn run() -> Result<()> {
    let waiting = signals::block()?;
    mounts::first()?;
    console::attach();
    // The host waits for a first word: from here on this boot has ordinary priority.
    say("guest-init runs");
    modules::load(Path::new("/modules/order"));
    disk::mount(Path::new("/newroot"))?;
    mounts::switch_root(Path::new("/newroot"), PROGRAM)?;
    mounts::second()?;
    protect();
    rest();
    let user = cgroup::prepare()?;
    names::set_up();
    let listener = net::set_up()?;
    let guest = Guest::start(Who::Dev, PROGRAM.into(), Freezer::new(Some(user)))?;
    let asked = Arc::clone(&guest);
    guest::spawn("signals", move || waiting.serve(&asked))?;
    report(rehearse::start(&guest));
    server::serve(&guest, listener)
}

/// What a kernel does for no reason but that time passes dirties memory, which is a
/// file of the host's. A watchdog would take a pause for a lock-up, besides, and memory
/// that is put together before anybody needs it so is looked at twice a second.
fn rest() {
    let calm = [("vm/stat_interval", "300"), ("vm/compaction_proactiveness", "0"), ("kernel/watchdog", "0")];
    for (name, value) in calm {
        let path = format!("/proc/sys/{name}");
        // A kernel without it has nothing to be calmed.
        if Path::new(&path).exists() {
            report(std::fs::write(&path, value).during("set", path));
        }
    }
}

/// Room for all the streams. When memory runs out the kernel spares PID 1 by itself.
fn protect() {
    let limit = Rlimit { current: Some(FILES), maximum: Some(524_288) };
    report(setrlimit(Resource::Nofile, limit).during("raise", "the limit of open files"));
    // `ping` without root, as every distribution has it.
    report(
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647")
            .during("allow", "ping to users"),
    );
}
