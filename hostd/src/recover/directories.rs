//! The pool's directories against the store's records.

use super::{Hypervisors, Machines, end, fail};
use crate::{
    error::Result,
    host::Host,
    storage::{FoundMachine, Survey},
};
use berth_types::{LostKind, Machine, MachineId, MachineName, State, UserId};
use std::collections::HashSet;

/// Makes both agree: whatever cannot be done for one machine fails that one.
pub async fn settle(
    host: &Host,
    records: Vec<Machine>,
    survey: Survey,
    processes: &mut Hypervisors,
) -> Machines {
    let mut machines: Machines = records.into_iter().map(|record| (record.id.clone(), record)).collect();
    // 1. What was begun under a hidden name.
    for found in survey.making {
        if let Some(record) = machines.get_mut(&found.id) {
            if let Err(error) = host.storage.publish(&found.id).await {
                fail(host, record, &format!("its files are half-made: {}", error.chain())).await;
            }
        } else if let Err(error) = undo_making(host, found, processes).await {
            tracing::error!(error = error.chain(), "cannot undo a half-made machine; left alone");
        }
    }
    // 2. Removals, as far as they had come.
    let is_removing = |record: &Machine| record.state == State::Removing;
    let mirrored = survey.whole.iter().filter_map(|found| found.record.as_ref().ok());
    let removing = machines.values().chain(mirrored).filter(|record| is_removing(record));
    let mut removing: HashSet<MachineId> = removing.map(|record| record.id.clone()).collect();
    removing.extend(survey.removing);
    for id in &removing {
        tracing::info!(machine = %id, "finishing a removal");
        end(host, id, &processes.take(id, None)).await;
        match remove(host, id).await {
            Ok(()) => drop(machines.remove(id)),
            Err(error) => {
                let reason = format!("its removal cannot be finished: {}", error.chain());
                match machines.get_mut(id) {
                    Some(record) => fail(host, record, &reason).await,
                    None => tracing::error!(machine = %id, reason, "left alone"),
                }
            }
        }
    }
    // 3. Directories that no record tells of.
    let mut names: HashSet<(UserId, MachineName)> =
        machines.values().map(|record| (record.owner.clone(), record.name.clone())).collect();
    for found in survey.whole {
        if machines.contains_key(&found.id) || removing.contains(&found.id) {
            continue;
        }
        let id = found.id.clone();
        match unknown(host, found, &mut names, processes).await {
            Ok(Some(record)) => drop(machines.insert(id, record)),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(machine = %id, error = error.chain(), "a directory without a record; left alone");
            }
        }
    }
    // 4. Records that no directory is there for.
    missing(host, &mut machines).await;
    machines
}

/// The files first, and for good: a directory without a record is one that was lost.
async fn remove(host: &Host, id: &MachineId) -> Result<()> {
    host.storage.remove(id).await?;
    host.storage.sync_directories().await?;
    host.store.remove_machine(id).await
}

/// One that never had a record was acknowledged to no user. It is deleted if it says itself
/// that it has never run, or if there is nothing in it.
async fn undo_making(host: &Host, found: FoundMachine, processes: &mut Hypervisors) -> Result<()> {
    end(host, &found.id, &processes.take(&found.id, None)).await;
    let never_ran = |record: &Machine| record.fresh || record.template;
    if !found.has_files() || found.record.as_ref().is_ok_and(never_ran) {
        tracing::info!(machine = %found.id, "undoing a machine that was never finished");
        return host.storage.remove(&found.id).await;
    }
    let reason = found.record.err().unwrap_or_else(|| "it is half-made, but has run before".to_owned());
    host.lost.put(LostKind::Machine, found.id.as_str(), &found.directory, &reason).map(drop)
}

/// A whole directory without a record: the store has lost it, or it is a template's. Its
/// mirror says which; where that cannot be believed, it is moved aside.
async fn unknown(
    host: &Host,
    found: FoundMachine,
    names: &mut HashSet<(UserId, MachineName)>,
    processes: &mut Hypervisors,
) -> Result<Option<Machine>> {
    let FoundMachine { id, directory, record } = found;
    let reason = match record {
        Ok(record) if record.template => {
            tracing::info!(machine = %id, "undoing a template that was not finished");
            end(host, &id, &processes.take(&id, None)).await;
            return host.storage.remove(&id).await.map(|()| None);
        }
        Ok(record) if host.registry.user(&record.owner).is_none() => {
            format!("its owner {} is no user here", record.owner)
        }
        Ok(record) if !names.insert((record.owner.clone(), record.name.clone())) => {
            format!("its owner {} has another machine '{}'", record.owner, record.name)
        }
        Ok(record) => {
            tracing::warn!(machine = %id, "rebuilt a machine's record from its directory");
            host.store.put_machine(&record).await?;
            return Ok(Some(record));
        }
        Err(reason) => reason,
    };
    end(host, &id, &processes.take(&id, None)).await;
    host.lost.put(LostKind::Machine, id.as_str(), &directory, &reason).map(|_| None)
}

async fn missing(host: &Host, machines: &mut Machines) {
    let missing = |record: &Machine| !host.storage.directory(&record.id).is_dir();
    // A copy's record is on the disk before its directory is, and it is acknowledged
    // when it has been up.
    let unfinished = machines.values().filter(|record| record.fresh && missing(record));
    for id in unfinished.map(|record| record.id.clone()).collect::<Vec<_>>() {
        tracing::info!(machine = %id, "undoing a machine that was never finished");
        match host.store.remove_machine(&id).await {
            Ok(()) => drop(machines.remove(&id)),
            Err(error) => tracing::error!(machine = %id, error = error.chain(), "cannot remove a record"),
        }
    }
    for record in machines.values_mut() {
        if missing(record) && record.state != State::Failed {
            fail(host, record, "its files are missing from the pool").await;
        }
    }
}
