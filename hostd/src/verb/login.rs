//! Whose key is this?

use super::key;
use crate::host::Host;
use berth_api::Reply;
use berth_config::Registration;
use berth_types::{Code, Refusal, SshKey};

pub fn knows(host: &Host, fingerprint: &str) -> bool {
    host.config.gateway.registration == Registration::Open || host.registry.owner(fingerprint).is_some()
}

pub async fn login(host: &Host, key: SshKey) -> Result<Reply, Refusal> {
    if let Some(user) = host.registry.owner(&key.fingerprint) {
        return Ok(Reply::LoggedIn { user, registered: false });
    }
    if host.config.gateway.registration == Registration::Closed {
        let hint = "ask the operator to add it with 'berth user add'";
        return Err(Refusal::new(Code::NotAllowed, "that key is not registered here", hint));
    }
    let key = key::checked(key)?;
    let fingerprint = key.fingerprint.clone();
    let label = key.comment.clone();
    match host.registry.register(&label, key).await {
        Ok(user) => {
            tracing::info!(user = %user.id, fingerprint, "registered a user");
            Ok(Reply::LoggedIn { user: user.id, registered: true })
        }
        // Two first logins at once: the other one registered it.
        Err(error) => match host.registry.owner(&fingerprint) {
            Some(user) => Ok(Reply::LoggedIn { user, registered: false }),
            None => Err(error.into()),
        },
    }
}
