//! Logins: whose a key is, and whether it may still go on.

use super::key;
use crate::{host::Host, registry::locked_out};
use berth_api::{Reply, Session};
use berth_config::Registration;
use berth_types::{AuditEvent, Code, Refusal, SshKey, UserId, text};
use std::{net::IpAddr, time::Duration};

/// A question about changes is answered after this, with nothing new: the
/// connection that it came on may be gone.
const ACCESS_WAIT: Duration = Duration::from_secs(30);
/// Of what the gateway says of a failed login.
const REASON: usize = 200;

pub fn knows(host: &Host, fingerprint: &str) -> bool {
    host.config.gateway.registration == Registration::Open || host.registry.owner(fingerprint).is_some()
}

pub async fn login(host: &Host, key: SshKey, address: IpAddr) -> Result<Reply, Refusal> {
    let key = key::checked(key)?;
    let fingerprint = key.fingerprint.clone();
    if let Some(user) = host.registry.owner(&fingerprint) {
        return come_in(host, user, &fingerprint).await;
    }
    if host.config.gateway.registration == Registration::Closed {
        let hint = "ask the operator to add it with 'berth user add'";
        return Err(Refusal::new(Code::NotAllowed, "that key is not registered here", hint));
    }
    match host.registry.register_from(&host.config.gateway, address, key).await {
        Ok(user) => {
            tracing::info!(user = %user.id, fingerprint, "registered a user");
            Ok(Reply::LoggedIn { user: user.id, registered: true, notices: Vec::new() })
        }
        // Two first logins at once: the other one registered it.
        Err(error) => match host.registry.owner(&fingerprint) {
            Some(user) => come_in(host, user, &fingerprint).await,
            None => Err(error.into()),
        },
    }
}

async fn come_in(host: &Host, user: UserId, fingerprint: &str) -> Result<Reply, Refusal> {
    if let Some(lock) = host.registry.user(&user).and_then(|user| user.locked) {
        return Ok(Reply::Barred(locked_out(&lock)));
    }
    let notices = host.registry.notices(&user, fingerprint).await?;
    Ok(Reply::LoggedIn { user, registered: false, notices })
}

/// For the audit log, which counts a flood of them instead of writing each.
pub async fn failed(host: &Host, address: IpAddr, fingerprint: Option<String>, reason: String) -> Reply {
    let reason = text::plain(&reason, REASON);
    let fingerprint = text::plain(&fingerprint.unwrap_or_default(), 100);
    host.audit.record(AuditEvent::Refused { fingerprint, address: Some(address), reason }).await;
    Reply::Done
}

/// Waits until keys or users have changed since `seen`.
pub async fn access(host: &Host, seen: Option<u64>) -> Reply {
    let mut access = host.registry.access();
    let changed = access.wait_for(|version| Some(*version) != seen);
    let _ = tokio::time::timeout(ACCESS_WAIT, changed).await;
    Reply::Access(*access.borrow())
}

pub fn standing(host: &Host, sessions: &[Session]) -> Reply {
    Reply::Standing(sessions.iter().map(|session| host.registry.standing(session).err()).collect())
}
