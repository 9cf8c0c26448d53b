//! The machine's resolver: asks for it, remembers what it answered, and never
//! gives an address that the policy refuses.

mod answer;
mod budget;
mod resolver;
mod serve;

#[cfg(any(test, feature = "fuzzing"))]
pub use answer::parse;
pub use budget::Budget;
pub use serve::{tcp, udp};

use crate::{
    bridge::machine::Machine,
    control::{Outcome, Protocol},
};
use berth_types::egress::{Destination, HostName};
use std::{net::Ipv4Addr, sync::Arc, time::Duration};

/// Where a machine finds what it may know of itself.
pub const INFO_HOST: &str = "berth.internal";

#[derive(Debug)]
pub enum Resolved {
    Addresses(Vec<Ipv4Addr>, Duration),
    Refused,
    NoSuchName,
    Failed,
}

/// Resolves a name for a machine: policy, lookup, policy again on each address.
pub async fn resolve(machine: &Arc<Machine>, name: &HostName) -> Resolved {
    if name.as_str() == INFO_HOST {
        return Resolved::Addresses(vec![machine.gateway], Duration::from_secs(60));
    }
    let shared = machine.host.shared();
    let rules = machine.rules();
    let decide = |address| machine.decide_on(&rules, Destination { name: Some(name), address, port: None });
    let before = decide(None);
    let report = |outcome, rule: String, reason: &str| {
        let mut decision = machine.decision(Protocol::Dns);
        decision.host = Some(name.clone());
        decision.verdict = outcome;
        decision.rule = rule;
        decision.reason = reason.to_owned();
        machine.host.reporter.decided(decision);
    };
    if !before.allowed {
        report(Outcome::Refused, before.rule.to_string(), "the name may not be looked up");
        return Resolved::Refused;
    }
    // The answer was judged when it came, maybe by another policy.
    if let Some((addresses, left)) = machine.names.fresh(name)
        && addresses.iter().all(|address| decide(Some(*address)).allowed)
    {
        return Resolved::Addresses(addresses, left);
    }
    let found = match resolver::lookup(&shared, name).await {
        Ok(found) => found,
        Err(resolver::LookupError::NoSuchName) => {
            report(Outcome::Allowed, before.rule.to_string(), "no such name");
            return Resolved::NoSuchName;
        }
        Err(resolver::LookupError::Failed(reason)) => {
            report(Outcome::Failed, before.rule.to_string(), &reason);
            return Resolved::Failed;
        }
    };
    let mut refused = None;
    let mut addresses = Vec::new();
    for address in found.addresses {
        let verdict = decide(Some(address));
        if verdict.allowed {
            addresses.push(address);
        } else {
            refused = Some((address, verdict));
        }
    }
    if addresses.is_empty()
        && let Some((address, verdict)) = refused
    {
        let mut decision = machine.decision(Protocol::Dns);
        decision.host = Some(name.clone());
        decision.address = Some(address);
        decision.rule = verdict.rule.to_string();
        decision.reason = "the name leads to an address that is refused".to_owned();
        machine.host.reporter.decided(decision);
        return Resolved::Refused;
    }
    report(Outcome::Allowed, before.rule.to_string(), "");
    machine.names.remember(name, &addresses, found.lifetime);
    Resolved::Addresses(addresses, found.lifetime)
}
