//! Every other port: dialled at once, for the server may speak first.
//!
//! Only a rule that names a host and this port, or SSH to a host with a key,
//! leads to anything but passing.

use super::{Connection, by_judgement, tls};
use crate::{
    bridge::{
        machine::{Claim, Machine},
        ssh,
    },
    control::Protocol,
};
use berth_types::egress::{Host, HostName};
use std::{net::SocketAddrV4, sync::Arc};

/// Names that are looked up again after the bridge forgot them.
const RECALLED: usize = 32;

pub async fn serve(connection: Connection) {
    let (machine, to) = (connection.machine.clone(), connection.to);
    let rules = machine.rules();
    let allowed = |name: &&HostName| machine.decide(&rules, Some(name), to).allowed;
    let names = names(&machine, to).await;
    for name in names.iter().filter(allowed) {
        if let Some(secret) = rules.for_ssh(name, to.port()) {
            return ssh::serve(connection, name.clone(), secret).await;
        }
    }
    if names.iter().filter(allowed).any(|name| rules.names_port(name, to.port())) {
        return tls::serve(connection).await;
    }
    let judged = machine.judge(Claim::Unread, to).await;
    by_judgement(connection, Vec::new(), Protocol::Tcp, judged).await;
}

/// The names of an address; if there are none, those that rules name may have
/// been forgotten with an earlier process.
async fn names(machine: &Arc<Machine>, to: SocketAddrV4) -> Vec<HostName> {
    let known = machine.names.of(*to.ip());
    if !known.is_empty() {
        return known;
    }
    let rules = machine.rules();
    let secrets = rules.secrets.iter().flat_map(|secret| secret.binding.to());
    let candidates = secrets.chain(&rules.policy.allow).filter(|pattern| pattern.matches_port(to.port()));
    for pattern in candidates.take(RECALLED) {
        if let Host::Name(name) = &pattern.host {
            machine.is_tied(name, *to.ip()).await;
        }
    }
    machine.names.of(*to.ip())
}
