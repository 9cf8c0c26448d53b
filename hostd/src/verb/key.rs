//! A user's keys.

use crate::host::Host;
use berth_api::Reply;
use berth_types::{Code, Refusal, SshKey, UserId};

pub async fn add(host: &Host, user: &UserId, key: SshKey) -> Result<Reply, Refusal> {
    Ok(Reply::Key(host.registry.add_key(user, checked(key)?).await?))
}

/// The gateway parsed the key; what it says is kept only if it has that form.
pub fn checked(mut key: SshKey) -> Result<SshKey, Refusal> {
    let good = key.fingerprint.starts_with("SHA256:")
        && key.fingerprint.len() < 80
        && key.public.len() < 16 << 10
        && !key.public.chars().any(char::is_control);
    if !good {
        return Err(Refusal::new(Code::Usage, "that is no public key", "paste one line of a .pub file"));
    }
    key.comment = key.comment.chars().filter(|c| !c.is_control()).take(80).collect();
    key.added = jiff::Timestamp::now();
    Ok(key)
}
