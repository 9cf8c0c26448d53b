//! Secrets: set, listed by name, removed. Never read.

use crate::host::Host;
use berth_api::{Reply, SecretView, Session};
use berth_types::{
    Code, MachineName, Refusal, UserId,
    egress::{self, Binding, HostPattern, Projection, SecretName, SecretValue},
};
use std::sync::Arc;

/// Takes effect on the next request of every machine that it is for.
pub async fn set(
    host: &Arc<Host>,
    session: &Session,
    name: SecretName,
    binding: Binding,
    machine: Option<MachineName>,
    value: SecretValue,
) -> Result<Reply, Refusal> {
    let user = &session.user;
    berth_egress::check_secret(&binding, &value).map_err(|error| {
        Refusal::new(Code::Usage, error, "give the value on standard input: secret set … < FILE")
    })?;
    if binding.projections().contains(&Projection::Placeholder) && !name.is_variable() {
        let message = format!("'{name}' cannot name a variable");
        let hint = "a placeholder is in machines' environment: use a-z, A-Z, 0-9 and '_'";
        return Err(Refusal::new(Code::Usage, message, hint));
    }
    if let Some(wide) = binding.to().iter().find(|pattern| is_anybodys(pattern)) {
        let message =
            format!("{wide} would include hosts of anybody: names below {} are given out", parent(wide));
        return Err(Refusal::new(
            Code::Usage,
            message,
            "name the host itself, or *.NAME below a domain of your own",
        ));
    }
    let only = match machine {
        Some(name) => Some(host.fleet.find(user, &name)?.id().clone()),
        None => None,
    };
    let one_at_a_time = super::turn(host, session).await?;
    host.vault.set(user, name.clone(), binding, only, value).await?;
    drop(one_at_a_time);
    // Also those that it was for before.
    host.apply(user, |_| true).await;
    host.equip(user).await;
    find(host, user, &name)
}

/// Is it a wildcard directly below a public suffix, such as *.co.uk or *.s3.amazonaws.com,
/// where whoever asks is given a name?
fn is_anybodys(pattern: &HostPattern) -> bool {
    match &pattern.host {
        egress::Host::Below(parent) => psl::suffix_str(parent.as_str()) == Some(parent.as_str()),
        egress::Host::Name(_) | egress::Host::Network(_) => false,
    }
}

fn parent(pattern: &HostPattern) -> &str {
    match &pattern.host {
        egress::Host::Name(name) | egress::Host::Below(name) => name.as_str(),
        egress::Host::Network(_) => "",
    }
}

pub fn list(host: &Host, user: &UserId) -> Vec<SecretView> {
    let machines = host.fleet.of(user);
    let views = host.vault.of(user).into_iter().map(|secret| {
        let only = secret.meta.machine.as_ref();
        let machine = only.and_then(|only| machines.iter().find(|handle| handle.id() == only));
        SecretView {
            name: secret.meta.name.clone(),
            to: secret.meta.binding.to().to_vec(),
            forms: secret.meta.binding.projections().iter().map(form).collect(),
            machine: machine.map(|handle| handle.record().name.clone()),
            placeholder: secret.meta.placeholder.clone(),
            created: secret.meta.created,
            set: secret.meta.set,
            usable: secret.value.is_some(),
        }
    });
    views.collect()
}

pub async fn remove(host: &Arc<Host>, session: &Session, name: &SecretName) -> Result<Reply, Refusal> {
    let user = &session.user;
    let one_at_a_time = super::turn(host, session).await?;
    let reply = find(host, user, name)?;
    host.vault.remove(user, name).await?;
    drop(one_at_a_time);
    host.apply(user, |_| true).await;
    host.equip(user).await;
    Ok(reply)
}

fn find(host: &Host, user: &UserId, name: &SecretName) -> Result<Reply, Refusal> {
    let found = list(host, user).into_iter().find(|secret| secret.name == *name);
    found.map(Reply::Secret).ok_or_else(|| {
        let message = format!("you have no secret '{name}'");
        Refusal::new(Code::NotFound, message, "see them with 'secret ls'")
    })
}

fn form(projection: &Projection) -> String {
    match projection {
        Projection::Header { name, .. } => format!("header {name}"),
        Projection::Basic { user } => format!("basic {user}"),
        Projection::ClientCertificate => "client certificate".to_owned(),
        Projection::Placeholder => "placeholder".to_owned(),
        Projection::Ssh { user: Some(user), .. } => format!("ssh {user}"),
        Projection::Ssh { user: None, .. } => "ssh".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_below_a_public_suffix_is_anybodys() {
        for (pattern, wide) in [
            ("*.co.uk", true),
            ("*.s3.amazonaws.com", true),
            ("*.execute-api.eu-west-1.amazonaws.com:443", true),
            ("*.github.io", true),
            ("*.workers.dev", true),
            ("*.anything.ck", true),
            ("*.example.com", false),
            ("*.example.co.uk", false),
            ("*.corp.example", false),
            ("*.git.internal", false),
            ("mine.s3.amazonaws.com", false),
            ("mine.co.uk", false),
        ] {
            assert_eq!(is_anybodys(&pattern.parse().unwrap()), wide, "{pattern}");
        }
    }
}
