//! What machines may reach: shown, and changed at once.

use crate::{
    egress::{Scope, policy, summary},
    host::Host,
    machine::Policy,
};
use berth_api::{EgressChange, EgressTarget, EgressView, Reply};
use berth_types::{
    Code, Machine, Refusal, UserId,
    egress::{EgressPolicy, HostPattern},
};
use std::sync::Arc;

/// Rules of one policy; enough for anyone, few enough to look through.
const MOST: usize = 500;

pub async fn egress(
    host: &Arc<Host>,
    user: &UserId,
    target: EgressTarget,
    change: Option<EgressChange>,
) -> Result<Reply, Refusal> {
    match &target {
        EgressTarget::Machine(name) => {
            let handle = host.fleet.find(user, name)?;
            if let Some(change) = change {
                let changed = changed(policy(host, &handle.record()), change)?;
                handle.set(Policy::Egress(changed.map(Box::new))).await?;
                host.apply(user, |machine| machine.id == *handle.id()).await;
            }
        }
        EgressTarget::All => change_scope(host, user, &Scope::User, change).await?,
        EgressTarget::Label { key, value } => {
            change_scope(host, user, &Scope::Label(key.clone(), value.clone()), change).await?;
        }
    }
    view(host, user, target).map(|view| Reply::Egress(Box::new(view)))
}

async fn change_scope(
    host: &Arc<Host>,
    user: &UserId,
    scope: &Scope,
    change: Option<EgressChange>,
) -> Result<(), Refusal> {
    let Some(change) = change else { return Ok(()) };
    let now = host.policies.get(user, scope).unwrap_or_else(|| installation(host));
    let changed = changed(now, change)?;
    host.policies.set(user, scope, changed).await?;
    host.apply(user, |machine: &Machine| machine.egress.is_none()).await;
    Ok(())
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
    if policy.allow.len() + policy.deny.len() + policy.passthrough.len() > MOST {
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
    Ok(EgressView { target, from, policy, reaches, never, secrets })
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
