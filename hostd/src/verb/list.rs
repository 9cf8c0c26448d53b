//! What a user has.

use crate::host::Host;
use berth_api::{Identity, MachineView, Reply};
use berth_types::{Code, MachineName, Refusal, UserId};

/// As much of a console as fits on a few screens.
const CONSOLE: u64 = 64 << 10;

pub fn list(host: &Host, user: &UserId) -> Vec<MachineView> {
    host.fleet.of(user).iter().map(|handle| handle.view(host)).collect()
}

pub async fn info(host: &Host, user: &UserId, name: &MachineName) -> Result<Reply, Refusal> {
    let handle = host.fleet.find(user, name)?;
    let mut view = handle.view(host);
    view.disk_used = host.storage.disk_used(&handle.record());
    let points: Vec<_> = host.archive.of(handle.id()).iter().map(|one| one.id.clone()).collect();
    view.pool_used = host.storage.occupied(handle.id(), &points).await;
    Ok(Reply::Machine(Box::new(view)))
}

pub async fn console(host: &Host, user: &UserId, name: &MachineName) -> Result<Reply, Refusal> {
    let handle = host.fleet.find(user, name)?;
    Ok(Reply::Console(host.storage.console(handle.id(), CONSOLE).await))
}

pub fn whoami(host: &Host, user: &UserId) -> Result<Reply, Refusal> {
    let known = host.registry.user(user);
    let known =
        known.ok_or_else(|| Refusal::new(Code::NotFound, "you are not registered", "ask the operator"))?;
    Ok(Reply::Identity(Identity {
        user: known.id,
        label: known.label,
        created: known.created,
        keys: u32::try_from(host.registry.keys(user).len()).unwrap_or(u32::MAX),
        usage: host.ledger.usage(user),
        quota: host.ledger.quota(),
    }))
}
