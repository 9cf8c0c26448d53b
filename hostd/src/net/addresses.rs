//! The host's own addresses, and the kernel's word when they change.

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
    },
};
use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsRawFd, OwnedFd},
};
use tokio::io::{Interest, unix::AsyncFd};

/// rtnetlink's group of IPv4 addresses that come and go.
const GROUP: u32 = libc::RTMGRP_IPV4_IFADDR as u32;

/// Those of the calling thread's namespace.
#[derive(Debug)]
pub struct Addresses(AsyncFd<OwnedFd>);

impl Addresses {
    /// Changes are heard of from now on.
    #[allow(unsafe_code)]
    pub fn listen() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let netlink = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(netlink.as_raw_fd(), &NetlinkAddr::new(0, GROUP))?;
        // SAFETY: the AsyncFd owns its socket, which nobody else can close.
        Ok(Self(unsafe { AsyncFd::register_with_interest(netlink, Interest::READABLE) }?))
    }

    /// Returns when there were changes since it last did. What they are is not
    /// read: whoever looks afterwards sees all of them.
    pub async fn changed(&self) -> io::Result<()> {
        let mut notice = [0u8; 1024];
        let mut take = || recv(self.0.as_raw_fd(), &mut notice, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC);
        // More than the queue holds is a change as well.
        let heard = self.0.async_io(Interest::READABLE, |_| match take() {
            Ok(_) | Err(Errno::ENOBUFS) => Ok(()),
            Err(error) => Err(error.into()),
        });
        heard.await?;
        while matches!(take(), Ok(_) | Err(Errno::ENOBUFS)) {}
        Ok(())
    }

    /// All of them, in order.
    pub fn now(&self) -> io::Result<Vec<Ipv4Addr>> {
        own()
    }
}

/// The addresses of the calling thread's namespace, in order.
pub fn own() -> io::Result<Vec<Ipv4Addr>> {
    let mut own: Vec<Ipv4Addr> = nix::ifaddrs::getifaddrs()?
        .filter_map(|link| link.address?.as_sockaddr_in().map(|address| address.ip()))
        .collect();
    own.sort_unstable();
    own.dedup();
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{process::Command, time::Duration};
    use tokio::time::timeout;

    #[test]
    fn an_address_that_comes_or_goes_is_heard_of() {
        berth_sys::needs_root!();
        let ip = |words: &str| assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success());
        let test = async move {
            let addresses = Addresses::listen().unwrap();
            assert!(addresses.now().unwrap().is_empty());
            for (change, own) in [
                ("addr add 192.0.2.7/24 dev lo", vec![Ipv4Addr::new(192, 0, 2, 7)]),
                ("addr del 192.0.2.7/24 dev lo", vec![]),
            ] {
                let nothing = timeout(Duration::from_millis(50), addresses.changed()).await;
                assert!(nothing.is_err(), "nothing changed, before {change}");
                ip(change);
                timeout(Duration::from_secs(10), addresses.changed()).await.unwrap().unwrap();
                assert_eq!(addresses.now().unwrap(), own, "{change}");
            }
        };
        // A thread in a namespace of its own: nobody else's addresses are there.
        let thread = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
        });
        thread.join().unwrap();
    }
}
