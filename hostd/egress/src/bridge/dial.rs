//! Connecting to servers from the host's own namespace.

use crate::bridge::machine::Machine;
use berth_types::egress::{Destination, HostName, Rule, Special};
use rustix::net::sockopt;
use std::{
    io,
    net::{IpAddr, SocketAddrV4},
    time::Duration,
};
use tokio::{net::TcpStream, time::timeout};

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

pub async fn dial(
    machine: &Machine,
    name: Option<&HostName>,
    to: SocketAddrV4,
) -> Result<TcpStream, DialError> {
    let stream = timeout(PATIENCE, TcpStream::connect(to))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // An address that is ours after all, though nobody told us.
    if stream.local_addr()?.ip() == IpAddr::V4(*to.ip()) {
        let destination = Destination { name, address: Some(*to.ip()), port: Some(to.port()) };
        let verdict = machine.rules().policy.decide(destination, &[*to.ip()]);
        if !verdict.allowed {
            return Err(DialError::Refused(Rule::Special(Special::Host)));
        }
    }
    prepare(&stream)?;
    Ok(stream)
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
