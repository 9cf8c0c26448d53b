//! Where a TCP listener binds, by the rules of sshd with `GatewayPorts
//! clientspecified`.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::error::{Context, Error, Result};

const BACKLOG: i32 = 128;

/// The families that a requested host stands for.
pub fn hosts(host: &str) -> Option<Vec<IpAddr>> {
    match host {
        "" | "*" => Some(vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]),
        "localhost" => Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
        other => other.parse().ok().map(|address| vec![address]),
    }
}

/// Binds every family that the machine has, all on one port.
pub fn bind_all(host: &str, addresses: &[IpAddr], port: u16) -> Result<(Vec<OwnedFd>, u16)> {
    let mut sockets = Vec::new();
    let mut bound = port;
    let mut first = None;
    for &address in addresses {
        match bind_one(SocketAddr::new(address, bound)) {
            Ok((socket, port)) => {
                bound = port;
                sockets.push(socket);
            }
            // The first family is the one a person means; one that the machine
            // lacks explains nothing.
            Err(error) => first = first.or(Some(error)),
        }
    }
    match (sockets.is_empty(), first) {
        (true, Some(error)) => Err(error).during("listen on", format!("{host}:{port}")),
        (true, None) => Err(Error::new("listen on", host, io::ErrorKind::AddrNotAvailable.into())),
        _ => Ok((sockets, bound)),
    }
}

fn bind_one(address: SocketAddr) -> rustix::io::Result<(OwnedFd, u16)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    let port = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?.port();
    Ok((socket, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_mean_what_they_mean_to_sshd() {
        assert_eq!(hosts("").unwrap().len(), 2);
        assert_eq!(hosts("*"), hosts(""));
        assert!(hosts("localhost").unwrap().iter().all(IpAddr::is_loopback));
        assert_eq!(hosts("10.0.0.1").unwrap(), [IpAddr::from([10, 0, 0, 1])]);
        assert_eq!(hosts("example.org"), None);
    }

    #[test]
    fn port_zero_is_the_same_port_everywhere() {
        let (sockets, port) = bind_all("localhost", &hosts("localhost").unwrap(), 0).unwrap();
        assert!(port > 0 && !sockets.is_empty());
        assert!(bind_all("127.0.0.1", &hosts("127.0.0.1").unwrap(), port).is_err());
    }
}
