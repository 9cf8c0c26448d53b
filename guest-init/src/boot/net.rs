//! The two links. The user's is in the machine's own network namespace; the
//! host's is in one that only guest-init has, so that nothing a user does to
//! their network locks them out.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::OwnedFd,
    sync::mpsc,
    thread,
};

use berth_guest_protocol as protocol;
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt},
    thread::UnshareFlags,
};

use super::{netlink::Netlink, report};
use crate::error::{Context, Error, Result};

const BACKLOG: i32 = 1024;
const CTL: &str = "ctl0";
const ETH: &str = "eth0";
/// The link loses nothing and is never crowded: what TCP does about that is in the way of
/// the first answer after a wake, where guests are emulated.
const PLAIN: [(&str, &str); 3] =
    [("tcp_congestion_control", "reno"), ("tcp_no_metrics_save", "1"), ("tcp_autocorking", "0")];

/// Brings up both links and returns the socket that the host connects to.
pub fn set_up() -> Result<OwnedFd> {
    let netlink = Netlink::open().during("open", "netlink")?;
    report(netlink.index("lo").and_then(|lo| netlink.set_up(lo)).during("bring up", "lo"));
    // First, for it may hold the name that the user's is to have.
    let listener = ctl(&netlink)?;
    // A machine without a network is still a machine.
    report(eth(&netlink));
    Ok(listener)
}

fn eth(netlink: &Netlink) -> Result<()> {
    let name = by_mac(protocol::ETH_GUEST_MAC).during("find", "the user's link")?;
    let address = Ipv4Addr::from(protocol::ETH_GUEST_ADDRESS);
    let up = || -> io::Result<()> {
        let index = netlink.index(&name)?;
        if name != ETH {
            netlink.rename(index, ETH)?;
        }
        netlink.add_address(index, address, protocol::ETH_PREFIX)?;
        netlink.set_up(index)?;
        netlink.add_default_route(index, protocol::ETH_HOST_ADDRESS.into())
    };
    up().during("bring up", ETH)
}

fn ctl(netlink: &Netlink) -> Result<OwnedFd> {
    let name = by_mac(protocol::CTL_GUEST_MAC).during("find", "the host's link")?;
    let index = netlink.index(&name).during("find", &name)?;
    let (to_us, namespace) = mpsc::channel();
    let (to_them, moved) = mpsc::channel();
    // A namespace is a thread's: this one makes it, and ends when its socket
    // is bound. The socket keeps the namespace.
    let inside = thread::Builder::new()
        .name("ctl".to_owned())
        .spawn(move || -> Result<OwnedFd> {
            unshare_network()?;
            let own = fs::File::open("/proc/thread-self/ns/net").during("open", "a network namespace")?;
            let gone = |_| Error::new("configure", CTL, io::ErrorKind::BrokenPipe.into());
            to_us.send(own).map_err(|_| Error::new("configure", CTL, io::ErrorKind::BrokenPipe.into()))?;
            moved.recv().map_err(gone)?;
            ctl_inside()
        })
        .during("start the thread", "ctl")?;
    if let Ok(namespace) = namespace.recv() {
        netlink.move_to(index, std::os::fd::AsFd::as_fd(&namespace), CTL).during("move", &name)?;
        // When the thread is gone its result says why.
        let _ = to_them.send(());
    }
    inside.join().unwrap_or_else(|_| Err(Error::new("configure", CTL, io::ErrorKind::Other.into())))
}

#[allow(unsafe_code)]
fn unshare_network() -> Result<()> {
    // SAFETY: a network namespace holds no descriptors or memory of ours; the
    // thread opens all of its sockets after this.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.during("make", "a network namespace")
}

fn ctl_inside() -> Result<OwnedFd> {
    let netlink = Netlink::open().during("open", "netlink")?;
    let own = Ipv4Addr::from(protocol::GUEST_ADDRESS);
    let up = || -> io::Result<()> {
        let index = netlink.index(CTL)?;
        netlink.add_address(index, own, protocol::PREFIX)?;
        netlink.set_up(index)?;
        netlink.add_neighbour(index, protocol::HOST_ADDRESS.into(), protocol::CTL_HOST_MAC)
    };
    up().during("bring up", CTL)?;
    for (key, value) in PLAIN {
        report(fs::write(format!("/proc/sys/net/ipv4/{key}"), value).during("set", key));
    }
    let address = SocketAddr::V4(SocketAddrV4::new(own, protocol::PORT));
    let bound = || -> rustix::io::Result<OwnedFd> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    bound().during("listen on", address)
}

fn by_mac(mac: [u8; 6]) -> io::Result<String> {
    let wanted = mac.map(|byte| format!("{byte:02x}")).join(":");
    for entry in fs::read_dir("/sys/class/net")? {
        let entry = entry?;
        let address = fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        if address.trim() == wanted {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Err(io::ErrorKind::NotFound.into())
}
