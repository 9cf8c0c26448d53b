//! Hearing of packets that rules show.

use super::{Attributes, REQUEST, append, ask, kernel};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::{io, os::fd::OwnedFd};

/// NFULNL_MSG_CONFIG of the kernel's log by netlink.
const CONFIGURE: u16 = (libc::NFNL_SUBSYS_ULOG as u16) << 8 | 1;
/// NFULNL_CFG_CMD_BIND.
const BIND: u8 = 1;
/// NFULNL_COPY_PACKET.
const COPY_PACKET: u8 = 2;
/// Of each packet: its longest header, and the ports behind it.
const START: u32 = 64;

/// A socket on which the packets of a group arrive, in the calling thread's
/// namespace. There is one at a time; it is busy while a dead hostd's bridge has it.
pub fn listen(group: u16) -> io::Result<OwnedFd> {
    let [a, b, c, d] = START.to_be_bytes();
    let wanted = Attributes::default()
        .bytes(kernel::CONFIG_COMMAND, &[BIND])
        .bytes(kernel::CONFIG_MODE, &[a, b, c, d, COPY_PACKET, 0])
        // Each at once: somebody may be waiting for the line that tells of it.
        .bytes(kernel::CONFIG_THRESHOLD, &1u32.to_be_bytes());
    let mut message = Vec::new();
    let flags = REQUEST | libc::NLM_F_ACK as u16;
    append(&mut message, (CONFIGURE, flags, 1), (libc::AF_UNSPEC, group), &wanted);
    let netlink = ask(&message, 1)?;
    fcntl(&netlink, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(netlink)
}
