//! From a launch to a QEMU process that will answer.

use super::{Qemu, arguments::Arguments};
use crate::{
    Error, Launch,
    spawn::{self, Confinement, Newborn},
};
use std::{
    os::fd::{AsFd, AsRawFd},
    process::{Command, Stdio},
};

/// Blocks for a few milliseconds: to be called where that is allowed.
pub(super) fn start(qemu: &Qemu, launch: &Launch) -> Result<Newborn, Error> {
    let laid = spawn::lay_out(launch)?;
    let mut newborn = Newborn::expected(vec![launch.socket.clone()]);
    let qmp = spawn::listen(&launch.socket)?;
    let arguments = Arguments {
        name: launch.id.as_str(),
        accelerator: qemu.accelerator,
        firmware: &qemu.firmware,
        tsc_khz: qemu.tsc_khz,
        cpus: launch.cpus,
        memory: laid.memory,
        kernel: &launch.kernel,
        initrd: &launch.initrd,
        origin: launch.origin,
        qmp: qmp.as_raw_fd(),
        ctl_tap: launch.ctl_tap.as_raw_fd(),
        eth_tap: launch.eth_tap.as_raw_fd(),
    };
    let mut command = Command::new(&qemu.binary);
    command.args(arguments.to_line()).stdout(Stdio::null()).stderr(laid.log);
    let confinement = Confinement {
        netns: launch.netns.as_fd(),
        kept: &[qmp.as_fd(), launch.ctl_tap.as_fd(), launch.eth_tap.as_fd()],
        uid: launch.uid,
        device_group: qemu.device_group,
        cgroup: qemu.groups.make(&launch.id, launch.cpus, launch.memory),
    };
    newborn.bear(confinement, command, &launch.directory)?;
    Ok(newborn)
}
