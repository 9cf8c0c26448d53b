//! One machine as the bridge knows it, and the judgement on where it goes.

use crate::{
    bridge::{
        dns::{self, Resolved},
        host::Host,
        inject::{Share, Spares},
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
    /// Memory for bodies.
    pub bodies: Arc<Share>,
    /// Connections with large windows.
    pub wide: Load,
    rules: watch::Receiver<Arc<Rules>>,
}

/// What a connection says about where it goes, on ports where that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The TLS name, or the Host of a request.
    Name(HostName),
    /// None, or one that cannot be read.
    Missing,
    /// The port's protocol is not known, so nothing is read.
    Unread,
}

/// Where a connection goes, as far as the host can tell.
#[derive(Clone, Debug)]
pub struct Judged {
    /// A name that the host resolved to this address for this machine.
    pub name: Option<HostName>,
    pub claim: Claim,
    pub verdict: Verdict,
}

impl Claim {
    pub const fn name(&self) -> Option<&HostName> {
        match self {
            Self::Name(name) => Some(name),
            Self::Missing | Self::Unread => None,
        }
    }
}

impl Judged {
    /// For the log: what the host knows, or what the guest claims.
    pub fn host(&self) -> Option<&HostName> {
        self.name.as_ref().or(self.claim.name())
    }

    /// For the log: what the guest claims, where the host knows another name.
    pub fn claimed(&self) -> Option<&HostName> {
        self.claim.name().filter(|claimed| self.name.as_ref().is_some_and(|name| name != *claimed))
    }

    /// Did the host itself resolve the claimed name to this address?
    pub fn is_tied(&self) -> bool {
        self.name.is_some() && self.name.as_ref() == self.claim.name()
    }

    /// Why it was refused, for people.
    pub fn reason(&self, to: SocketAddrV4) -> String {
        match (&self.verdict.rule, &self.claim) {
            (Rule::Mode(EgressMode::Allowlist), Claim::Missing) => {
                format!("it names no host, and no rule allows {} by address", to.ip())
            }
            (Rule::Mode(EgressMode::Allowlist), Claim::Name(claimed)) if !self.is_tied() => {
                format!("it names {claimed}, which is not allowed at {}", to.ip())
            }
            _ => "the policy refuses it".to_owned(),
        }
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
            bodies: host.bodies.share(),
            wide: Load::default(),
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
        rules.policy.decide(to, &self.host.shared().ground)
    }

    /// Judges a connection by what it claims. An allowlist believes a claimed name only
    /// if the host itself resolved it to this address for this machine: many names may
    /// be served at an address, and only one of them be allowed.
    pub async fn judge(self: &Arc<Self>, claim: Claim, to: SocketAddrV4) -> Judged {
        let rules = self.rules();
        let Claim::Name(claimed) = &claim else {
            let name = self.likely_name(&rules, to);
            let verdict = self.verdict(&rules, name.as_ref(), &claim, to);
            return Judged { name, claim, verdict };
        };
        let verdict = self.decide(&rules, Some(claimed), to);
        // Looked up only if the answer matters.
        let by_address = self.decide(&rules, None, to);
        let matters =
            verdict.allowed && (by_address != verdict || !rules.for_tls(claimed, to.port()).is_empty());
        let tied = self.names.tied(claimed, *to.ip()) || matters && self.is_tied(claimed, *to.ip()).await;
        let name = if tied { Some(claimed.clone()) } else { self.names.of(*to.ip()).into_iter().next() };
        let verdict = self.verdict(&rules, name.as_ref(), &claim, to);
        Judged { name, claim, verdict }
    }

    /// Is nothing allowed at this address but by a name?
    pub fn goes_by_name(&self, rules: &Rules, to: SocketAddrV4) -> bool {
        rules.policy.mode == EgressMode::Allowlist && !self.decide(rules, None, to).allowed
    }

    /// Judges by the rules of now.
    pub fn judge_again(&self, rules: &Rules, judged: &Judged, to: SocketAddrV4) -> Verdict {
        self.verdict(rules, judged.name.as_ref(), &judged.claim, to)
    }

    /// `name`: one that the host resolved to this address for this machine.
    fn verdict(&self, rules: &Rules, name: Option<&HostName>, claim: &Claim, to: SocketAddrV4) -> Verdict {
        let claimed = claim.name();
        if claimed.is_some() {
            let verdict = self.decide(rules, claimed, to);
            if !verdict.allowed {
                return verdict;
            }
        }
        let counts = match claim {
            Claim::Unread => name,
            Claim::Missing if rules.policy.mode != EgressMode::Allowlist => name,
            Claim::Missing => match name.map(|name| self.decide(rules, Some(name), to)) {
                Some(verdict @ Verdict { rule: Rule::Deny(_), .. }) => return verdict,
                _ => None,
            },
            // Another name at the address says nothing of this one.
            Claim::Name(claimed) => name.filter(|name| *name == claimed),
        };
        self.decide(rules, counts, to)
    }

    /// Of the names that the host resolved to an address one that is allowed, else any.
    fn likely_name(&self, rules: &Rules, to: SocketAddrV4) -> Option<HostName> {
        let mut names = self.names.of(*to.ip());
        let allowed = names.iter().position(|name| self.decide(rules, Some(name), to).allowed);
        (!names.is_empty()).then(|| names.swap_remove(allowed.unwrap_or(0)))
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
            claimed: None,
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
