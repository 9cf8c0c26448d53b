//! What machines may reach: shown, and changed at once.

use super::new::NO_LABEL;
use crate::{
    egress::{Scope, policy, summary},
    host::Host,
    machine::Policy,
    net::own_addresses,
};
use berth_api::{EgressChange, EgressTarget, EgressView, Ineffective, Reply, Session};
use berth_types::{
    Code, Machine, Refusal, UserId,
    egress::{self, EgressPolicy, Ground, HostPattern, Special},
    is_label,
};
use std::sync::Arc;

/// Rules of one policy; enough for anyone, few enough to look through.
const MOST: usize = 500;
/// Policies by label, and for all machines, that one user may have.
const SCOPES: usize = 100;
/// Rules of these together: each change writes all of them.
const RULES: usize = 2000;

pub async fn egress(
    host: &Arc<Host>,
    session: &Session,
    target: EgressTarget,
    change: Option<EgressChange>,
) -> Result<Reply, Refusal> {
    if let EgressTarget::Label { key, value } = &target
        && !is_label(key, value)
    {
        return Err(Refusal::new(Code::Usage, NO_LABEL, "try --label team=web"));
    }
    if let Some(change) = change {
        check(&change, &ground(host))?;
        apply(host, session, &target, change).await?;
    }
    view(host, &session.user, target).map(|view| Reply::Egress(Box::new(view)))
}

/// One change of a user's at a time, until it is written; then the bridge is told.
async fn apply(
    host: &Arc<Host>,
    session: &Session,
    target: &EgressTarget,
    change: EgressChange,
) -> Result<(), Refusal> {
    let user = &session.user;
    let one_at_a_time = super::turn(host, session).await?;
    let scope = match target {
        EgressTarget::Machine(name) => {
            let handle = host.fleet.find(user, name)?;
            let changed = changed(policy(host, &handle.record()), change)?;
            handle.set(Policy::Egress(changed.map(Box::new))).await?;
            drop(one_at_a_time);
            host.apply(user, |machine| machine.id == *handle.id()).await;
            return Ok(());
        }
        EgressTarget::All => Scope::User,
        EgressTarget::Label { key, value } => Scope::Label(key.clone(), value.clone()),
    };
    let now = host.policies.get(user, &scope).unwrap_or_else(|| installation(host));
    let changed = changed(now, change)?;
    if let Some(policy) = &changed {
        let (scopes, rules) = host.policies.beside(user, &scope);
        if scopes >= SCOPES || rules + policy.rules() > RULES {
            let message = format!("you have at most {SCOPES} policies by label, with {RULES} rules in all");
            return Err(Refusal::new(
                Code::Limit,
                message,
                "take some away with 'egress --label K=V default'",
            ));
        }
    }
    host.policies.set(user, &scope, changed).await?;
    drop(one_at_a_time);
    host.apply(user, |machine: &Machine| machine.egress.is_none()).await;
    Ok(())
}

/// What no user decides, as it is now.
fn ground(host: &Host) -> Ground {
    let own = own_addresses().unwrap_or_else(|error| {
        // The bridge knows them too, and refuses them whatever was allowed.
        tracing::warn!(%error, "the host's own addresses cannot be listed");
        Vec::new()
    });
    Ground { own, private: host.config.egress.allow_private.clone() }
}

/// Why a rule that allows this would have no effect, if it would have none.
fn forbidden(rule: &HostPattern, ground: &Ground) -> Option<Special> {
    match rule.host {
        egress::Host::Network(network) => ground.forbids(network),
        egress::Host::Name(_) | egress::Host::Below(_) => None,
    }
}

/// A rule is not taken that would look as if it allowed what nothing can.
fn check(change: &EgressChange, ground: &Ground) -> Result<(), Refusal> {
    let EgressChange::Allow(rules) = change else { return Ok(()) };
    let Some((rule, special)) = rules.iter().find_map(|rule| Some((rule, forbidden(rule, ground)?))) else {
        return Ok(());
    };
    let message = format!("{rule} is never reached: it is {}", special.as_str());
    let hint = if special.is_private() {
        "the operator can leave its network to users: egress.allow_private"
    } else {
        "no rule opens the host itself, loopback, link-local or reserved addresses"
    };
    Err(Refusal::new(Code::NotAllowed, message, hint))
}

fn installation(host: &Host) -> EgressPolicy {
    EgressPolicy { mode: host.config.egress.mode, ..EgressPolicy::default() }
}

/// The policy after a change; `None`: none of its own. A change to what comes
/// from elsewhere makes it one's own.
fn changed(mut policy: EgressPolicy, change: EgressChange) -> Result<Option<EgressPolicy>, Refusal> {
    let without =
        |list: &mut Vec<HostPattern>, gone: &[HostPattern]| list.retain(|rule| !gone.contains(rule));
    let with = |list: &mut Vec<HostPattern>, added: Vec<HostPattern>| {
        for rule in added {
            if !list.contains(&rule) {
                list.push(rule);
            }
        }
    };
    match change {
        EgressChange::Default => return Ok(None),
        EgressChange::Mode(mode) => policy.mode = mode,
        EgressChange::Allow(rules) => {
            without(&mut policy.deny, &rules);
            with(&mut policy.allow, rules);
        }
        EgressChange::Deny(rules) => {
            without(&mut policy.allow, &rules);
            with(&mut policy.deny, rules);
        }
        EgressChange::Passthrough(rules) => with(&mut policy.passthrough, rules),
        EgressChange::Forget(rules) => {
            for list in [&mut policy.allow, &mut policy.deny, &mut policy.passthrough] {
                without(list, &rules);
            }
        }
    }
    if policy.rules() > MOST {
        let message = format!("a policy has at most {MOST} rules");
        return Err(Refusal::new(
            Code::Limit,
            message,
            "use *.HOST and networks, or take some out with 'forget'",
        ));
    }
    Ok(Some(policy))
}

fn view(host: &Host, user: &UserId, target: EgressTarget) -> Result<EgressView, Refusal> {
    let scoped = |scope: &Scope, own: &str| match host.policies.get(user, scope) {
        Some(policy) => (own.to_owned(), policy),
        None => ("installation".to_owned(), installation(host)),
    };
    let (from, policy, secrets) = match &target {
        EgressTarget::Machine(name) => {
            let machine = host.fleet.find(user, name)?.record();
            let from = match host.policies.for_machine(&machine) {
                _ if machine.egress.is_some() => "machine",
                Some((Scope::Label(..), _)) => "label",
                Some((Scope::User, _)) => "user",
                None => "installation",
            };
            let secrets = host.vault.for_machine(&machine);
            let secrets = secrets.iter().map(|secret| secret.meta.name.clone()).collect();
            (from.to_owned(), policy(host, &machine), secrets)
        }
        EgressTarget::All => {
            let (from, policy) = scoped(&Scope::User, "user");
            (from, policy, Vec::new())
        }
        EgressTarget::Label { key, value } => {
            let (from, policy) = scoped(&Scope::Label(key.clone(), value.clone()), "label");
            (from, policy, Vec::new())
        }
    };
    let (reaches, never) = (summary(&policy), host.config.egress.deny.clone());
    let ground = ground(host);
    let ineffective = policy.allow.iter().filter_map(|rule| {
        let why = forbidden(rule, &ground)?.as_str().to_owned();
        Some(Ineffective { rule: rule.clone(), why })
    });
    let ineffective = ineffective.collect();
    Ok(EgressView { target, from, policy, reaches, never, ineffective, secrets })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::egress::EgressMode;

    #[test]
    fn the_last_word_on_a_host_counts() {
        let rules =
            |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<HostPattern>>();
        let mut policy = EgressPolicy::default();
        for change in [
            EgressChange::Allow(rules(&["a.example", "b.example", "a.example"])),
            EgressChange::Deny(rules(&["b.example", "c.example"])),
            EgressChange::Mode(EgressMode::Allowlist),
            EgressChange::Passthrough(rules(&["a.example"])),
            EgressChange::Forget(rules(&["c.example"])),
        ] {
            policy = changed(policy, change).unwrap().unwrap();
        }
        assert_eq!((policy.allow, policy.deny), (rules(&["a.example"]), rules(&["b.example"])));
        assert_eq!((policy.mode, policy.passthrough), (EgressMode::Allowlist, rules(&["a.example"])));
        assert_eq!(changed(EgressPolicy::default(), EgressChange::Default), Ok(None));
        let many: Vec<String> = (0..=MOST).map(|number| format!("h{number}.example")).collect();
        let many = EgressChange::Allow(rules(&many.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(changed(EgressPolicy::default(), many).unwrap_err().code, Code::Limit);
    }
}
