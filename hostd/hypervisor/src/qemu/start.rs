//! From a launch to a QEMU process that will answer.

use super::{Qemu, arguments::Arguments, linked::Linked};
use crate::{
    Error, Launch,
    spawn::{self, Confinement, Laid, Newborn},
};
use berth_confine::Order;
use berth_launch::Program;
use std::{
    ffi::OsString,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

/// Blocks for a few milliseconds: to be called where that is allowed.
pub(super) fn start(qemu: &Qemu, launch: &Launch) -> Result<Newborn, Error> {
    let laid = spawn::lay_out(launch)?;
    let mut newborn = Newborn::expected(vec![launch.socket.clone()]);
    let qmp = spawn::listen(&launch.socket)?;
    if let Some(linked) = qemu.ahead.as_ref().and_then(|ahead| ahead.take())
        && become_machines(linked, qemu, launch, &laid, &qmp, &mut newborn)
    {
        return Ok(newborn);
    }
    let numbers = [qmp.as_raw_fd(), launch.ctl_tap.as_raw_fd(), launch.eth_tap.as_raw_fd()];
    let program = Program {
        path: qemu.binary.clone(),
        arguments: arguments(qemu, launch, laid.memory, numbers),
        environment: [spawn::ENVIRONMENT].map(|(name, value)| (name.into(), value.into())).into(),
        streams: [spawn::null()?, spawn::null()?, laid.log.into()],
    };
    let confinement = Confinement {
        netns: launch.netns.as_fd(),
        kept: &[qmp.as_fd(), launch.ctl_tap.as_fd(), launch.eth_tap.as_fd()],
        uid: launch.uid,
        device_group: qemu.device_group,
    };
    let group = qemu.groups.make(&launch.id, launch.cpus, launch.memory);
    newborn.bear(&program, &confinement, group.as_ref(), &launch.directory)?;
    Ok(newborn)
}

/// With a process that waits. False: it has ended.
fn become_machines(
    linked: Linked,
    qemu: &Qemu,
    launch: &Launch,
    laid: &Laid,
    qmp: &OwnedFd,
    newborn: &mut Newborn,
) -> bool {
    let order = Order {
        directory: launch.directory.clone().into(),
        uid: launch.uid,
        groups: qemu.device_group.into_iter().collect(),
        arguments: arguments(qemu, launch, laid.memory, Linked::NUMBERS),
    };
    let descriptors =
        [launch.netns.as_fd(), laid.log.as_fd(), qmp.as_fd(), launch.ctl_tap.as_fd(), launch.eth_tap.as_fd()];
    let Some((process, group)) = linked.obey(&order, &descriptors, launch.cpus, launch.memory) else {
        return false;
    };
    newborn.take(process, group.as_ref());
    true
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
