//! What the bridge reports: decisions for the audit log, and bytes that keep a
//! machine awake.

use crate::host::Host;
use berth_egress::control::{Decision, Event, Outcome, Protocol};
use berth_types::{AuditEvent, EgressEntry};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Reads until the bridge's handle is gone. It waits for the audit log, and the
/// bridge for it: decisions are not outrun.
pub async fn attend(host: Arc<Host>, mut events: mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        match event {
            Event::Decision(decision) => {
                let time = decision.time;
                if let Some(entry) = entry(&host, *decision) {
                    host.audit.record_at(time, AuditEvent::Egress(Box::new(entry))).await;
                }
            }
            Event::Moved { machine, bytes } => host.links.count(&machine, bytes),
            Event::Restarted => tracing::warn!("the egress bridge was started again"),
            Event::Ready | Event::Done { .. } => {}
        }
    }
}

/// A machine that is gone meanwhile is known by its record, if it has one.
fn entry(host: &Host, decision: Decision) -> Option<EgressEntry> {
    let linked = host.links.get(&decision.machine);
    let name = linked.map(|linked| linked.name).or_else(|| {
        let handles = host.fleet.of(&decision.owner);
        handles
            .iter()
            .find(|handle| *handle.id() == decision.machine)
            .map(|handle| handle.record().name.clone())
    })?;
    Some(EgressEntry {
        user: decision.owner,
        machine: name,
        machine_id: decision.machine,
        host: decision.host.map(|host| host.to_string()).unwrap_or_default(),
        address: decision.address.map(Into::into),
        port: decision.port.unwrap_or(0),
        protocol: match decision.protocol {
            Protocol::Dns => "dns",
            Protocol::Tcp => "tcp",
            Protocol::Tls => "tls",
            Protocol::Http => "http",
            Protocol::Https => "https",
            Protocol::Ssh => "ssh",
            Protocol::Udp => "udp",
            Protocol::Icmp => "icmp",
            Protocol::Ip => "ip",
        }
        .to_owned(),
        rule: decision.rule,
        verdict: match decision.verdict {
            Outcome::Allowed => "allowed",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
        }
        .to_owned(),
        reason: decision.reason,
        up: decision.up,
        down: decision.down,
    })
}
