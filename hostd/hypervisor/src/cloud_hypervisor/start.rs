//! From a launch to a Cloud Hypervisor process that will answer.

use super::{CloudHypervisor, config::Machine, events, state::Restoring};
use crate::{
    Error, Launch, Origin,
    files::DISK,
    spawn::{self, Confinement, Newborn},
};
use berth_launch::Program;
use rustix::fs::{Mode, OFlags};
use std::{
    ffi::OsString,
    os::fd::{AsFd, AsRawFd},
    path::Path,
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
    let pipe_path = events::path(&launch.socket);
    let mut newborn = Newborn::expected(vec![launch.socket.clone(), pipe_path.clone()]);
    let socket = spawn::listen(&launch.socket)?;
    let pipe = events::make(&pipe_path)?;
    let words = [
        "--api-socket".to_owned(),
        format!("fd={}", socket.as_raw_fd()),
        "--event-monitor".to_owned(),
        format!("fd={}", pipe.as_raw_fd()),
        "--seccomp".to_owned(),
        "true".to_owned(),
    ];
    let name = driver.binary.clone().into_os_string();
    let program = Program {
        path: driver.binary.clone(),
        arguments: [name].into_iter().chain(words.map(OsString::from)).collect(),
        environment: [spawn::ENVIRONMENT].map(|(name, value)| (name.into(), value.into())).into(),
        streams: [spawn::null()?, laid.console.into(), laid.log.into()],
    };
    let confinement = Confinement {
        netns: launch.netns.as_fd(),
        kept: &[socket.as_fd(), pipe.as_fd()],
        uid: launch.uid,
        device_group: driver.device_group,
    };
    let group = driver.groups.make(&launch.id, launch.cpus, launch.memory);
    newborn.bear(&program, &confinement, group.as_ref(), &launch.directory)?;
    Ok(Begun { newborn, memory: laid.memory, direct, restoring })
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
