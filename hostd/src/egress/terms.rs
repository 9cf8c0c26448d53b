//! What the bridge and the guest are told of a machine.

use super::known::known_hosts;
use crate::host::Host;
use berth_egress::control::{Secret, Terms};
use berth_guest_protocol::Equip;
use berth_types::{
    Machine,
    egress::{EgressMode, EgressPolicy, Projection},
};
use serde_json::json;

/// What a machine may reach: its own policy, its labels', its user's, or the
/// installation's.
pub fn policy(host: &Host, machine: &Machine) -> EgressPolicy {
    let own = machine.egress.clone();
    let found = own.or_else(|| host.policies.for_machine(machine).map(|(_, policy)| policy));
    found.unwrap_or_else(|| EgressPolicy { mode: host.config.egress.mode, ..EgressPolicy::default() })
}

pub fn terms(host: &Host, machine: &Machine) -> Terms {
    let mut policy = policy(host, machine);
    let info = info(host, machine, &policy);
    // The operator's word is above anybody's.
    policy.deny.extend(host.config.egress.deny.iter().cloned());
    let mut secrets = Vec::new();
    for secret in host.vault.for_machine(machine) {
        match &secret.value {
            Some(value) => secrets.push(Secret {
                name: secret.meta.name.clone(),
                binding: secret.meta.binding.clone(),
                value: value.clone(),
                placeholder: secret.meta.placeholder.clone(),
            }),
            // A request without its secret would tell somebody that it has none.
            None => policy.deny.extend(secret.meta.binding.to().iter().cloned()),
        }
    }
    Terms { name: machine.name.clone(), owner: machine.owner.clone(), policy, secrets, info }
}

/// What a machine may know of itself.
fn info(host: &Host, machine: &Machine, policy: &EgressPolicy) -> serde_json::Value {
    let user = host.registry.user(&machine.owner).map(|user| user.label).unwrap_or_default();
    let secrets: Vec<_> = host
        .vault
        .for_machine(machine)
        .iter()
        .map(|secret| json!({ "name": secret.meta.name, "to": secret.meta.binding.to() }))
        .collect();
    json!({ "name": machine.name, "user": user, "egress": policy, "secrets": secrets })
}

/// What its guest needs: whom to trust, and the placeholders.
pub fn equipment(host: &Host, machine: &Machine) -> Equip {
    let secrets = host.vault.for_machine(machine);
    let environment: Vec<(String, String)> = secrets
        .iter()
        .filter(|secret| secret.meta.binding.projections().contains(&Projection::Placeholder))
        .filter(|secret| secret.meta.name.is_variable())
        .map(|secret| (secret.meta.name.to_string(), secret.meta.placeholder.clone()))
        .collect();
    let known_hosts = known_hosts(&host.ssh_key, secrets.iter().map(|secret| &secret.meta.binding));
    Equip { authority: host.authority.clone(), roots: host.roots.clone(), environment, known_hosts }
}

/// In words, for `info`.
pub fn summary(policy: &EgressPolicy) -> String {
    let list = |patterns: &[berth_types::egress::HostPattern]| {
        let shown: Vec<String> = patterns.iter().take(3).map(ToString::to_string).collect();
        let more = patterns.len().saturating_sub(3);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", shown.join(", "))
    };
    match (policy.mode, policy.allow.as_slice(), policy.deny.as_slice()) {
        (EgressMode::Closed, ..) => "nothing".to_owned(),
        (EgressMode::Allowlist, [], _) => "nothing: its allowlist is empty".to_owned(),
        (EgressMode::Allowlist, allow, _) => format!("only {}", list(allow)),
        (EgressMode::Open, _, []) => "everything public".to_owned(),
        (EgressMode::Open, _, deny) => format!("everything public but {}", list(deny)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_in_words() {
        let patterns = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let policy = |mode, allow: &[&str], deny: &[&str]| EgressPolicy {
            mode,
            allow: patterns(allow),
            deny: patterns(deny),
            passthrough: Vec::new(),
            ..EgressPolicy::default()
        };
        for (policy, words) in [
            (policy(EgressMode::Open, &[], &[]), "everything public"),
            (policy(EgressMode::Open, &[], &["a.example"]), "everything public but a.example"),
            (policy(EgressMode::Closed, &["a.example"], &[]), "nothing"),
            (policy(EgressMode::Allowlist, &[], &[]), "nothing: its allowlist is empty"),
            (
                policy(EgressMode::Allowlist, &["a.b", "c.d", "e.f", "g.h"], &[]),
                "only a.b, c.d, e.f and 1 more",
            ),
        ] {
            assert_eq!(summary(&policy), words);
        }
    }
}
