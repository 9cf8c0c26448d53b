//! From a launch to a QEMU process that will answer.

use super::{Qemu, arguments::Arguments};
use crate::{
    Error, Launch, Origin,
    jail::{FIRST, Program},
    spawn::{self, Newborn},
};
use std::{
    ffi::OsString,
    os::fd::{AsFd, RawFd},
};

/// Blocks for a few milliseconds: to be called where that is allowed.
pub(super) fn start(qemu: &Qemu, launch: &Launch) -> Result<Newborn, Error> {
    let laid = spawn::lay_out(launch)?;
    let mut newborn = Newborn::expected(vec![launch.socket.clone()]);
    let qmp = spawn::listen(&launch.socket)?;
    let files = match launch.origin {
        Origin::Boot => vec![launch.kernel.clone(), launch.initrd.clone()],
        Origin::Saved => Vec::new(),
    };
    let program = Program {
        path: qemu.binary.clone(),
        arguments: arguments(qemu, launch, laid.memory, [FIRST, FIRST + 1, FIRST + 2]),
        streams: [spawn::null()?, spawn::null()?, laid.log.into()],
        kept: &[qmp.as_fd(), launch.ctl_tap.as_fd(), launch.eth_tap.as_fd()],
        files,
        device_group: qemu.device_group,
    };
    newborn.bear(&qemu.jail, launch, program)?;
    Ok(newborn)
}

fn arguments(
    qemu: &Qemu,
    launch: &Launch,
    memory: u64,
    [qmp, ctl_tap, eth_tap]: [RawFd; 3],
) -> Vec<OsString> {
    // Without one nobody notices that it is another, which costs time and nothing else.
    let identity = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let arguments = Arguments {
        settings: &qemu.settings,
        name: launch.id.as_str(),
        identity: identity.trim(),
        accelerator: qemu.accelerator,
        firmware: &qemu.firmware,
        tsc_khz: qemu.tsc_khz,
        cpus: launch.cpus,
        memory,
        kernel: &launch.kernel,
        initrd: &launch.initrd,
        origin: launch.origin,
        qmp,
        ctl_tap,
        eth_tap,
    };
    [qemu.binary.clone().into_os_string()].into_iter().chain(arguments.to_line()).collect()
}
