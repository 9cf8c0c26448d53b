//! What only the operator asks.

use super::{Progress, key};
use crate::{host::Host, machine::Handle};
use berth_api::{Reply, Status, UserView};
use berth_types::{Code, Lock, Refusal, SshKey, State, User, UserId};
use jiff::Timestamp;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Machines that go to rest at once: more would only wait for each other's disk.
const AT_ONCE: usize = 8;

pub async fn user_add(host: &Host, label: &str, key: SshKey) -> Result<Reply, Refusal> {
    let user = host.registry.register(label, key::checked(key)?).await?;
    Ok(Reply::User(view(host, user)))
}

pub fn users(host: &Host) -> Vec<UserView> {
    host.registry.users().into_iter().map(|user| view(host, user)).collect()
}

pub async fn user_remove(host: &Host, user: &UserId) -> Result<Reply, Refusal> {
    if host.registry.user(user).is_none() {
        return Err(Refusal::new(Code::NotFound, "there is no such user", "see them with 'berth user ls'"));
    }
    let machines = host.ledger.usage(user).machines;
    if machines > 0 {
        let message = format!("that user has {machines} machines");
        return Err(Refusal::new(Code::Conflict, message, "they must be removed first"));
    }
    host.vault.forget(user, |_| true).await?;
    host.policies.forget(user).await?;
    host.registry.remove_user(user).await?;
    Ok(Reply::Done)
}

/// The gateway ends the user's connections when it hears of it.
pub async fn user_lock(host: &Host, user: &UserId, reason: &str) -> Result<Reply, Refusal> {
    let reason = berth_types::text::plain(reason, 200);
    let user = host.registry.set_lock(user, Some(Lock { reason, since: Timestamp::now() })).await?;
    tracing::warn!(user = %user.id, "locked");
    Ok(Reply::User(view(host, user)))
}

pub async fn user_unlock(host: &Host, user: &UserId) -> Result<Reply, Refusal> {
    Ok(Reply::User(view(host, host.registry.set_lock(user, None).await?)))
}

pub fn status(host: &Host) -> Result<Reply, Refusal> {
    let machines = host.fleet.all();
    let running = machines.iter().filter(|handle| handle.record().state == State::Running).count();
    let (memory_committed, memory_limit) = host.ledger.memory();
    let space = host.storage.space()?;
    Ok(Reply::Status(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        driver: format!("{} {}", host.driver.name(), host.driver.version()),
        machines: u32::try_from(machines.len()).unwrap_or(u32::MAX),
        running: u32::try_from(running).unwrap_or(u32::MAX),
        memory_committed,
        memory_limit,
        pool_free: space.free,
        pool_size: space.size,
    }))
}

pub async fn rekey(host: &Host, progress: &Progress) -> Result<Reply, Refusal> {
    let count = host.vault.rekey().await?;
    progress.say(format!("{count} secrets are sealed under a new master key"));
    Ok(Reply::Done)
}

/// Puts every machine to rest. hostd ends when the answer has left.
pub async fn shutdown(host: &Arc<Host>, progress: &Progress) -> Result<Reply, Refusal> {
    host.closing.send_replace(true);
    let mut up: Vec<_> = host.fleet.all();
    up.retain(|handle| handle.record().state.has_process());
    let total = up.len();
    let (mut resting, mut done) = (JoinSet::new(), 0);
    loop {
        while resting.len() < AT_ONCE
            && let Some(handle) = up.pop()
        {
            resting.spawn(async move { put_to_rest(&handle).await });
        }
        match resting.join_next().await {
            None => break,
            Some(Ok(Err(error))) => tracing::warn!(%error, "a machine did not stop"),
            Some(_) => {}
        }
        done += 1;
        progress.say(format!("{done} of {total} machines are at rest"));
    }
    Ok(Reply::Done)
}

/// A machine goes on where it was when the service is back, so it sleeps. One
/// that cannot is shut down.
async fn put_to_rest(handle: &Handle) -> Result<(), Refusal> {
    tracing::debug!(machine = %handle.id(), state = %handle.record().state, "goes to rest");
    if let Err(refusal) = handle.sleep().await {
        tracing::info!(machine = %handle.id(), %refusal, "it cannot sleep, and is stopped");
        handle.stop().await?;
    }
    tracing::debug!(machine = %handle.id(), state = %handle.record().state, "is at rest");
    Ok(())
}

fn view(host: &Host, user: User) -> UserView {
    UserView {
        keys: host.registry.keys(&user.id).into_iter().map(|key| key.fingerprint).collect(),
        machines: host.ledger.usage(&user.id).machines,
        user: user.id,
        label: user.label,
        created: user.created,
        locked: user.locked.map(|lock| lock.reason),
    }
}
