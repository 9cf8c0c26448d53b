//! The end of machines.

use super::Progress;
use crate::host::Host;
use berth_api::Reply;
use berth_types::{MachineName, Refusal, UserId};

/// All or none are looked up before the first is removed.
pub async fn remove(
    host: &Host,
    user: &UserId,
    names: Vec<MachineName>,
    progress: &Progress,
) -> Result<Reply, Refusal> {
    let mut handles = Vec::new();
    for name in &names {
        let handle = host.fleet.find(user, name)?;
        // Named twice is removed once.
        if !handles.iter().any(|(_, other): &(_, crate::machine::Handle)| other.id() == handle.id()) {
            handles.push((name.clone(), handle));
        }
    }
    let mut removed = Vec::new();
    for (name, handle) in handles {
        progress.say(format!("removing {name}"));
        handle.remove().await?;
        removed.push(name);
    }
    Ok(Reply::Removed(removed))
}
