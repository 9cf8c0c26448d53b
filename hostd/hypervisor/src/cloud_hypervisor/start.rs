//! From a launch to a Cloud Hypervisor process that will answer.

use super::{CloudHypervisor, config::Machine, events, state::Restoring};
use crate::{
    Error, Launch, Origin,
    files::DISK,
    spawn::{self, Confinement, Newborn},
};
use rustix::fs::{Mode, OFlags};
use std::{
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
    process::Command,
};

/// A process that waits for its first request, and what that needs.
pub(super) struct Begun {
    pub(super) newborn: Newborn,
    /// In bytes, whole MiB.
    pub(super) memory: u64,
    pub(super) direct: bool,
    /// Absent for a boot. Dropped, the files of a restore are gone.
    pub(super) restoring: Option<Restoring>,
}

/// Blocks for a few milliseconds: to be called where that is allowed.
pub(super) fn start(driver: &CloudHypervisor, launch: &Launch) -> Result<Begun, Error> {
    let laid = spawn::lay_out(launch)?;
    let direct = takes_direct(&launch.directory.join(DISK));
    let restoring = match launch.origin {
        Origin::Boot => {
            check(&launch.kernel)?;
            check(&launch.initrd)?;
            None
        }
        Origin::Saved => {
            let machine = Machine::new(driver, launch, laid.memory, direct);
            Some(Restoring::begin(&launch.directory, launch.uid, &machine)?)
        }
    };
    let mut newborn = Newborn::expected(leftovers(driver, launch));
    let socket = spawn::listen(&launch.socket)?;
    let pipe = events::make(&events::path(&launch.socket))?;
    let mut command = Command::new(&driver.binary);
    command
        .arg("--api-socket")
        .arg(format!("fd={}", socket.as_raw_fd()))
        .arg("--event-monitor")
        .arg(format!("fd={}", pipe.as_raw_fd()))
        .args(["--seccomp", "true"])
        .stdout(laid.console)
        .stderr(laid.log);
    let confinement = Confinement {
        netns: launch.netns.as_fd(),
        kept: &[socket.as_fd(), pipe.as_fd()],
        uid: launch.uid,
        device_group: driver.device_group,
        cgroup: driver.groups.make(&launch.id, launch.cpus, launch.memory),
    };
    newborn.born(confinement.spawn(command, &launch.directory)?)?;
    Ok(Begun { newborn, memory: laid.memory, direct, restoring })
}

/// What is left to remove when the process has ended.
pub(super) fn leftovers(driver: &CloudHypervisor, launch: &Launch) -> Vec<PathBuf> {
    let files = [launch.socket.clone(), events::path(&launch.socket)];
    driver.groups.leftovers(&launch.id, files)
}

/// Named here, for the hypervisor's own words leave out which file it was.
fn check(file: &Path) -> Result<(), Error> {
    match std::fs::metadata(file) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Refused {
            operation: "starting the machine",
            message: format!("{}: {error}", file.display()),
        }),
    }
}

/// Not every filesystem does; there the page cache is used.
fn takes_direct(disk: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(disk, flags, Mode::empty()).is_ok()
}
