//! From a launch to a Cloud Hypervisor process that will answer.

use super::{CloudHypervisor, config::Machine, events, state::Restoring};
use crate::{
    Error, Launch, Origin,
    files::{self, DISK},
    jail::{FIRST, Program},
    spawn::{self, Newborn},
};
use rustix::fs::OFlags;
use std::{ffi::OsString, os::fd::AsFd, path::Path};

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
    let direct = takes_direct(&launch.directory);
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
        format!("fd={FIRST}"),
        "--event-monitor".to_owned(),
        format!("fd={}", FIRST + 1),
        "--seccomp".to_owned(),
        "true".to_owned(),
    ];
    let name = driver.binary.clone().into_os_string();
    // Named in the description of a restored machine too.
    let files = vec![launch.kernel.clone(), launch.initrd.clone()];
    let program = Program {
        path: driver.binary.clone(),
        arguments: [name].into_iter().chain(words.map(OsString::from)).collect(),
        streams: [spawn::null()?, laid.console.into(), laid.log.into()],
        kept: &[socket.as_fd(), pipe.as_fd()],
        files,
        device_group: driver.device_group,
    };
    newborn.bear(&driver.jail, launch, program)?;
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
fn takes_direct(directory: &Path) -> bool {
    let Ok(disk) = files::read(directory, DISK) else { return false };
    let flags = rustix::fs::fcntl_getfl(&disk);
    flags.is_ok_and(|flags| rustix::fs::fcntl_setfl(&disk, flags | OFlags::DIRECT).is_ok())
}
