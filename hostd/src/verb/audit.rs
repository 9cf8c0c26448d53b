//! The record of what was done: written for every request, read back by verb.

use super::Outcome;
use crate::{error::Error, host::Host};
use berth_api::{EgressChange, EgressTarget, Reply, Request};
use berth_audit::{BusyReading, Query};
use berth_types::{AuditEvent, Code, MachineName, Refusal, Span, UserId, text};
use jiff::Timestamp;
use std::net::IpAddr;

/// An answer has to fit into one message.
const MOST: u32 = 5_000;
/// Of what is kept of names and labels that a caller gave.
const DETAIL: usize = 200;

/// What of a request is written down. Never a value, never a key.
pub struct Deed {
    verb: &'static str,
    machine: Option<MachineName>,
    detail: String,
}

/// `None`: it is asked by programs in the course of something else.
pub fn deed(request: &Request) -> Option<Deed> {
    let with = |verb, machine: Option<&MachineName>, detail: String| {
        let detail = text::plain(&detail, DETAIL);
        Some(Deed { verb, machine: machine.cloned(), detail })
    };
    let on = |verb, machine: &MachineName| with(verb, Some(machine), String::new());
    let plain = |verb| with(verb, None, String::new());
    match request {
        Request::Knows { .. }
        | Request::Login { .. }
        | Request::LoginFailed { .. }
        | Request::Access { .. }
        | Request::Standing { .. }
        | Request::Resolve { .. }
        | Request::Expect { .. }
        | Request::Ready
        | Request::Status => None,
        Request::Attach { name } => on("attach", name),
        Request::AttachDefault => plain("attach"),
        Request::New { spec } => on("new", &spec.name),
        Request::List => plain("ls"),
        Request::Info { name } => on("info", name),
        Request::Console { name } => on("info --console", name),
        Request::Remove { names } => with("rm", names.first(), words(names)),
        Request::Sleep { name } => on("sleep", name),
        Request::Wake { name } => on("wake", name),
        Request::Schedule { name, .. } => on("wake --at", name),
        Request::Fork { source, new, count, no_secrets } => {
            let to = new.as_ref().map(|new| format!("to {new} ")).unwrap_or_default();
            let count = count.map(|count| format!("-n {count} ")).unwrap_or_default();
            let cut = if *no_secrets { "--no-secrets" } else { "" };
            with("fork", source.as_ref(), format!("{to}{count}{cut}").trim_end().to_owned())
        }
        Request::Snapshot { name, label } => {
            with("snapshot", Some(name), label.as_ref().map(ToString::to_string).unwrap_or_default())
        }
        Request::Snapshots { name } => on("snapshots", name),
        Request::SnapshotRemove { name, label } => with("snapshot rm", Some(name), label.to_string()),
        Request::Restore { name, point } => with("restore", Some(name), point.to_string()),
        Request::NewFrom { new, name, point, .. } => with("new --from", Some(new), format!("{name}/{point}")),
        Request::Keepalive { name, .. } => on("keepalive", name),
        Request::Idle { name, .. } => on("idle", name),
        Request::Why { name } => on("why", name),
        Request::Stop { name } => on("stop", name),
        Request::Restart { name } => on("restart", name),
        Request::Rename { old, new } => with("rename", Some(old), format!("to {new}")),
        Request::KeyAdd { key } => with("key add", None, key.fingerprint.clone()),
        Request::KeyList => plain("key ls"),
        Request::KeyRemove { fingerprint } => with("key rm", None, fingerprint.clone()),
        Request::Whoami => plain("whoami"),
        Request::UpgradeCheck { driver, version } => {
            with("upgrade-check", None, format!("{driver} {version}"))
        }
        Request::SecretSet { name, binding, machine, .. } => {
            with("secret set", machine.as_ref(), format!("{name} to {}", words(binding.to())))
        }
        Request::Rekey => plain("secrets rekey"),
        Request::SecretList => plain("secret ls"),
        Request::SecretRemove { name } => with("secret rm", None, name.to_string()),
        Request::Egress { target, change } => {
            let change = change.as_ref().map(change_words).unwrap_or_default();
            match target {
                EgressTarget::Machine(name) => with("egress", Some(name), change),
                EgressTarget::All => with("egress --all", None, change),
                EgressTarget::Label { key, value } => {
                    with("egress --label", None, format!("{key}={value} {change}"))
                }
            }
        }
        Request::Audit { machine, .. } => with("audit", machine.as_ref(), String::new()),
        Request::UserAdd { label, key } => with("user add", None, format!("{label} {}", key.fingerprint)),
        Request::UserList => plain("user ls"),
        Request::UserRemove { user } => with("user rm", None, user.to_string()),
        Request::LostList => plain("lost ls"),
        Request::LostShow { entry } => with("lost show", None, entry.clone()),
        Request::LostRestore { entry, user, name } => {
            with("lost restore", name.as_ref(), format!("{entry} --user {user}"))
        }
        Request::LostRemove { entry } => with("lost rm", None, entry.clone()),
        Request::UserLock { user, reason } => with("user lock", None, format!("{user} {reason}")),
        Request::UserUnlock { user } => with("user unlock", None, user.to_string()),
        Request::Shutdown => plain("shutdown"),
    }
}

/// As it was typed.
fn change_words(change: &EgressChange) -> String {
    match change {
        EgressChange::Mode(mode) => mode.to_string(),
        EgressChange::Allow(hosts) => format!("allow {}", words(hosts)),
        EgressChange::Deny(hosts) => format!("deny {}", words(hosts)),
        EgressChange::Passthrough(hosts) => format!("passthrough {}", words(hosts)),
        EgressChange::Forget(hosts) => format!("forget {}", words(hosts)),
        EgressChange::Default => "default".to_owned(),
    }
}

fn words<T: ToString>(list: &[T]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

pub async fn record(host: &Host, user: Option<&UserId>, deed: Option<Deed>, outcome: &Outcome) {
    let Some(Deed { verb, machine, detail }) = deed else { return };
    let outcome = match outcome {
        Ok(_) => "done",
        Err(refusal) => refusal.code.as_str(),
    };
    let (verb, outcome) = (verb.to_owned(), outcome.to_owned());
    host.audit.record(AuditEvent::Verb { user: user.cloned(), verb, machine, detail, outcome }).await;
}

pub async fn record_login(
    host: &Host,
    fingerprint: String,
    address: IpAddr,
    answer: &Result<Reply, Refusal>,
) {
    let fingerprint = text::plain(&fingerprint, 100);
    let event = match answer {
        Ok(Reply::LoggedIn { user, registered, .. }) => AuditEvent::Login {
            user: user.clone(),
            fingerprint,
            registered: *registered,
            address: Some(address),
        },
        Ok(Reply::Barred(refusal)) | Err(refusal) => {
            let reason = refusal.message.clone();
            AuditEvent::Refused { fingerprint, address: Some(address), reason }
        }
        Ok(_) => return,
    };
    host.audit.record(event).await;
}

/// A user reads what is theirs, the operator everything.
pub async fn read(
    host: &Host,
    user: Option<&UserId>,
    machine: Option<MachineName>,
    since: Option<Span>,
    egress: bool,
    most: u32,
) -> Result<Reply, Refusal> {
    let since = match since {
        Some(span) => Some(before(Timestamp::now(), span)?),
        None => None,
    };
    let most = most.min(MOST) as usize;
    let wanted = Query { user: user.cloned(), machine, since, egress, most };
    match host.audit.read(wanted).await {
        Ok(entries) => Ok(Reply::Audit(entries)),
        Err(BusyReading::Busy) => {
            let message = "your audit log is being read already, as often as it may be at once";
            Err(Refusal::new(Code::Limit, message, "wait for the others to end, then try again"))
        }
        Err(BusyReading::Failed(error)) => Err(Error::from(error).into()),
    }
}

fn before(now: Timestamp, span: Span) -> Result<Timestamp, Refusal> {
    let long = || Refusal::new(Code::Usage, "that is longer than time has been kept", "try --since 1h");
    let span = jiff::SignedDuration::try_from(span.duration()).map_err(|_| long())?;
    now.checked_sub(span).map_err(|_| long())
}
