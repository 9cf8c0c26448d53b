//! What the bridge reports: decisions for the audit log, and bytes that keep a
//! machine awake.

use crate::host::Host;
use berth_egress::control::{Decision, Event, Outcome, Protocol};
use berth_types::{AuditEvent, EgressEntry, text};
use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;
use tokio::sync::mpsc;

/// What of a rule and a reason is kept.
const WORDS: usize = 300;
/// By how much a decision may be older than its report.
const LATE: SignedDuration = SignedDuration::from_mins(50);

/// Reads until the bridge's handle is gone. It waits for the audit log, and the
/// bridge for it: decisions are not outrun.
pub async fn attend(host: Arc<Host>, mut events: mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        match event {
            Event::Decision(decision) => {
                let time = believable(decision.time, Timestamp::now());
                if let Some(entry) = entry(&host, *decision) {
                    host.audit.record_at(time, AuditEvent::Egress(Box::new(entry))).await;
                }
            }
            // The operator's line: which machines they were of was not kept.
            Event::Untold { decisions } => host.audit.record(AuditEvent::Lost { events: decisions }).await,
            Event::Moved { machine, bytes } => host.links.count(&machine, bytes),
            Event::Restarted => tracing::warn!("the egress bridge was started again"),
            Event::Ready | Event::Done { .. } => {}
        }
    }
}

/// A decision is reported when its connection has ended, and no sooner than it is taken.
fn believable(time: Timestamp, now: Timestamp) -> Timestamp {
    time.clamp(now.checked_sub(LATE).unwrap_or(now), now)
}

/// Whose machine it is, and what that is called, is known here: the bridge's word counts
/// for neither. A machine without a record, such as one that becomes a template, is no user's.
fn entry(host: &Host, decision: Decision) -> Option<EgressEntry> {
    let record = host.fleet.with_id(&decision.machine)?.record();
    Some(EgressEntry {
        user: record.owner.clone(),
        machine: record.name.clone(),
        machine_id: decision.machine,
        host: decision.host.map(|host| host.to_string()).unwrap_or_default(),
        claimed: decision.claimed.map(|claimed| claimed.to_string()),
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
        rule: text::plain(&decision.rule, WORDS),
        verdict: match decision.verdict {
            Outcome::Allowed => "allowed",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
        }
        .to_owned(),
        reason: text::plain(&decision.reason, WORDS),
        up: decision.up,
        down: decision.down,
        times: 0,
    })
}
