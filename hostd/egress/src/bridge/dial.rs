//! Connecting to servers from the host's own namespace.

use crate::bridge::{machine::Machine, rules::Rules};
use berth_types::egress::{Rule, Special, Verdict};
use rustix::net::sockopt;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    time::Duration,
};
use tokio::{net::TcpStream, time::timeout};

/// Of the network 0.0.0.0/8, in which no host has an address.
const NOBODYS: Ipv4Addr = Ipv4Addr::new(0, 0, 0, 1);
const PATIENCE: Duration = Duration::from_secs(15);
/// Both ends may sleep for long; a peer that vanished is found out.
const KEEPALIVE: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("{0}")]
    Refused(Rule),
    #[error("cannot connect: {0}")]
    Io(#[from] io::Error),
}

/// `judge` has allowed it already, and is asked again once it is connected.
pub async fn dial(
    machine: &Machine,
    to: SocketAddrV4,
    judge: impl Fn(&Rules) -> Verdict,
) -> Result<TcpStream, DialError> {
    if is_ours(*to.ip()) {
        return Err(DialError::Refused(Rule::Special(Special::Host)));
    }
    let stream = timeout(PATIENCE, TcpStream::connect(to))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if let Some(rule) = arrived_where_it_may_not(machine, to, judge, &stream)? {
        return Err(DialError::Refused(rule));
    }
    prepare(&stream)?;
    Ok(stream)
}

/// Is this an address of the host by the kernel's own word, whether or not hostd has
/// said so yet? Only to such a one can a socket be bound.
fn is_ours(address: Ipv4Addr) -> bool {
    let binds = |address| std::net::UdpSocket::bind((address, 0)).is_ok();
    // Where net.ipv4.ip_nonlocal_bind is set it can be to any, and this tells nothing.
    binds(address) && !binds(NOBODYS)
}

/// Judges the other end once more: the kernel leads some addresses elsewhere
/// (0.0.0.0 to the loopback), and the host's own may have changed meanwhile.
fn arrived_where_it_may_not(
    machine: &Machine,
    to: SocketAddrV4,
    judge: impl Fn(&Rules) -> Verdict,
    stream: &TcpStream,
) -> io::Result<Option<Rule>> {
    let (peer, local) = (stream.peer_addr()?.ip(), stream.local_addr()?.ip());
    // Both ends are one host's: an address of ours, though hostd has not said so yet.
    if peer == local {
        return Ok(Some(Rule::Special(Special::Host)));
    }
    if peer != IpAddr::V4(*to.ip()) {
        let own = &machine.host.shared().ground.own;
        return Ok(Some(Rule::Special(Special::of_any(peer, own).unwrap_or(Special::Reserved))));
    }
    let verdict = judge(&machine.rules());
    Ok((!verdict.allowed).then_some(verdict.rule))
}

pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    Ok(())
}

/// Ends a connection so that the guest sees that it was refused.
pub fn reset(stream: TcpStream) {
    if let Err(error) = sockopt::set_socket_linger(&stream, Some(Duration::ZERO)) {
        tracing::debug!(%error, "cannot reset a connection; closing it");
    }
}
