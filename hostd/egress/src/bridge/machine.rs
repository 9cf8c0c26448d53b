//! One machine as the bridge knows it, and the judgement on where it goes.

use crate::{
    bridge::{
        dns::{self, Resolved},
        host::Host,
        inject::Spares,
        load::Load,
        names::Names,
        rules::Rules,
    },
    control::{Decision, Outcome, Protocol},
};
use berth_types::{
    MachineId,
    egress::{Destination, EgressMode, HostName, Ipv4Network, Rule, Special, Verdict},
};
use jiff::Timestamp;
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Arc, atomic::AtomicU64},
};
use tokio::sync::watch;

#[derive(Debug)]
pub struct Machine {
    pub id: MachineId,
    pub gateway: Ipv4Addr,
    network: Ipv4Network,
    pub host: Arc<Host>,
    pub names: Names,
    pub connections: Load,
    pub half_open: Load,
    pub moved: Arc<AtomicU64>,
    pub questions: dns::Budget,
    pub spares: Spares,
    rules: watch::Receiver<Arc<Rules>>,
}

/// Where a connection goes, as far as the host can tell.
#[derive(Clone, Debug)]
pub struct Judged {
    /// A name that the host resolved to this address for this machine.
    pub name: Option<HostName>,
    /// What the guest says.
    pub claimed: Option<HostName>,
    pub verdict: Verdict,
}

impl Judged {
    /// For the log: what is known, or what is said.
    pub fn host(&self) -> Option<&HostName> {
        self.name.as_ref().or(self.claimed.as_ref())
    }
}

impl Machine {
    pub fn new(
        id: MachineId,
        (gateway, network): (Ipv4Addr, Ipv4Network),
        host: Arc<Host>,
        rules: watch::Receiver<Arc<Rules>>,
    ) -> Self {
        Self {
            id,
            gateway,
            network,
            names: Names::default(),
            connections: Load::within(host.connections.clone()),
            host,
            half_open: Load::default(),
            moved: Arc::default(),
            questions: dns::Budget::default(),
            spares: Spares::default(),
            rules,
        }
    }

    pub fn rules(&self) -> Arc<Rules> {
        self.rules.borrow().clone()
    }

    /// Returns when `still_fine` is no longer true of the rules, or when the
    /// machine is unlinked.
    pub async fn changed_until(&self, mut still_fine: impl FnMut(&Rules) -> bool) {
        let mut rules = self.rules.clone();
        // Also what changed since the connection was judged.
        while still_fine(&rules.borrow_and_update()) {
            if rules.changed().await.is_err() {
                return;
            }
        }
    }

    pub async fn unlinked(&self) {
        self.changed_until(|_| true).await;
    }

    pub fn decide(&self, rules: &Rules, name: Option<&HostName>, to: SocketAddrV4) -> Verdict {
        self.decide_on(rules, Destination { name, address: Some(*to.ip()), port: Some(to.port()) })
    }

    /// The same where the address or the port is not known yet.
    pub fn decide_on(&self, rules: &Rules, to: Destination<'_>) -> Verdict {
        // On the link are the bridge, which has `http://berth.internal/` and nothing
        // else, and no other machine.
        if let Some(address) = to.address.filter(|address| self.network.contains(*address)) {
            let special = if address == self.gateway { Special::Host } else { Special::Link };
            return Verdict { allowed: false, rule: Rule::Special(special) };
        }
        rules.policy.decide(to, &self.host.shared().own)
    }

    /// Judges a connection whose client claims a name, or none.
    pub async fn judge(self: &Arc<Self>, claimed: Option<&HostName>, to: SocketAddrV4) -> Judged {
        let rules = self.rules();
        let Some(name) = claimed else { return self.judge_by_address(&rules, to) };
        let judged = |name, verdict| Judged { name, claimed: claimed.cloned(), verdict };
        let verdict = self.decide(&rules, Some(name), to);
        if is_denied(&verdict) {
            return judged(None, verdict);
        }
        if !verdict.allowed {
            // The claim may be wrong and the address still be fine.
            return Judged { claimed: claimed.cloned(), ..self.judge_by_address(&rules, to) };
        }
        let by_address = self.decide(&rules, None, to);
        // Looked up only if the answer matters.
        let matters = by_address != verdict || !rules.for_tls(name, to.port()).is_empty();
        if self.names.tied(name, *to.ip()) || matters && self.is_tied(name, *to.ip()).await {
            return judged(Some(name.clone()), verdict);
        }
        judged(None, by_address)
    }

    /// The same judgement by the rules of now.
    pub fn judge_again(&self, rules: &Rules, judged: &Judged, to: SocketAddrV4) -> Verdict {
        if let Some(claimed) = &judged.claimed {
            let verdict = self.decide(rules, Some(claimed), to);
            if is_denied(&verdict) {
                return verdict;
            }
        }
        self.decide(rules, judged.name.as_ref(), to)
    }

    fn judge_by_address(&self, rules: &Rules, to: SocketAddrV4) -> Judged {
        let mut refused = None;
        for name in self.names.of(*to.ip()) {
            let verdict = self.decide(rules, Some(&name), to);
            if verdict.allowed {
                return Judged { name: Some(name), claimed: None, verdict };
            }
            refused = Some(Judged { name: Some(name), claimed: None, verdict });
        }
        let unnamed = || Judged { name: None, claimed: None, verdict: self.decide(rules, None, to) };
        refused.unwrap_or_else(unnamed)
    }

    /// Did the host resolve this name to this address for this machine? If it
    /// does not remember (it may have been restarted), it looks again.
    pub async fn is_tied(self: &Arc<Self>, name: &HostName, address: Ipv4Addr) -> bool {
        if self.names.tied(name, address) {
            return true;
        }
        match dns::resolve(self, name).await {
            Resolved::Addresses(..) => self.names.tied(name, address),
            Resolved::Refused | Resolved::NoSuchName | Resolved::Failed => false,
        }
    }

    pub fn decision(&self, protocol: Protocol) -> Decision {
        Decision {
            machine: self.id.clone(),
            owner: self.rules().owner.clone(),
            time: Timestamp::now(),
            protocol,
            host: None,
            address: None,
            port: None,
            verdict: Outcome::Refused,
            rule: String::new(),
            reason: String::new(),
            up: 0,
            down: 0,
        }
    }
}

/// Refused for what it is, not for want of a name that is allowed.
fn is_denied(verdict: &Verdict) -> bool {
    !verdict.allowed && verdict.rule != Rule::Mode(EgressMode::Allowlist)
}
