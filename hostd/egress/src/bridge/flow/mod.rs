//! The way of one connection through the bridge.

pub mod http;
pub mod other;
mod pass;
mod requests;
pub mod tls;

use crate::{
    bridge::{
        dial,
        load::Seat,
        machine::{Judged, Machine},
    },
    control::{Decision, Outcome, Protocol},
};
use berth_types::egress::HostName;
use nix::sys::socket::{getsockopt, sockopt::OriginalDst};
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
};
use tokio::net::TcpStream;

/// A connection that was just accepted.
#[derive(Debug)]
pub struct Connection {
    pub machine: Arc<Machine>,
    pub stream: TcpStream,
    /// Where the guest meant to go.
    pub to: SocketAddrV4,
    /// Given back once both sides are connected.
    pub half_open: Seat,
}

impl Connection {
    /// Nothing if the kernel does not know where it was meant to go: then it
    /// was not redirected here, and nobody has any business here.
    pub fn new(machine: Arc<Machine>, stream: TcpStream, half_open: Seat) -> Option<Self> {
        let Ok(original) = getsockopt(&stream, OriginalDst) else {
            dial::reset(stream);
            return None;
        };
        let to = SocketAddrV4::new(
            Ipv4Addr::from_bits(u32::from_be(original.sin_addr.s_addr)),
            u16::from_be(original.sin_port),
        );
        if let Err(error) = dial::prepare(&stream) {
            tracing::debug!(%error, "a guest's connection ended early");
            return None;
        }
        Some(Self { machine, stream, to, half_open })
    }

    pub fn decision(&self, protocol: Protocol, name: Option<&HostName>) -> Decision {
        decision(&self.machine, protocol, name, self.to)
    }

    /// What is said of a connection that was judged.
    fn judged(&self, protocol: Protocol, judged: &Judged) -> Decision {
        let mut decision = self.decision(protocol, judged.host());
        decision.claimed = judged.claimed().cloned();
        decision.rule = judged.verdict.rule.to_string();
        decision
    }

    /// Says no in the only way that every protocol understands.
    fn refuse(self, protocol: Protocol, judged: &Judged) {
        let mut decision = self.judged(protocol, judged);
        decision.reason = judged.reason(self.to);
        self.machine.host.reporter.decided(decision);
        dial::reset(self.stream);
    }
}

/// What is said of a connection, once its outcome is known.
pub fn decision(
    machine: &Machine,
    protocol: Protocol,
    name: Option<&HostName>,
    to: SocketAddrV4,
) -> Decision {
    let mut decision = machine.decision(protocol);
    decision.host = name.cloned();
    decision.address = Some(*to.ip());
    decision.port = Some(to.port());
    decision
}

/// Passes a connection on, or refuses it, as judged.
async fn by_judgement(connection: Connection, first: Vec<u8>, protocol: Protocol, judged: Judged) {
    if judged.verdict.allowed {
        pass::pass(connection, first, protocol, judged).await;
    } else {
        connection.refuse(protocol, &judged);
    }
}

const fn outcome(error: &dial::DialError) -> Outcome {
    match error {
        dial::DialError::Refused(_) => Outcome::Refused,
        dial::DialError::Io(_) => Outcome::Failed,
    }
}
