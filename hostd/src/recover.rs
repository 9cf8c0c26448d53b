//! After a start: what does the disk say, what still runs, and who owns it?
//!
//! Nothing acknowledged is lost, what is half-made is finished or undone, and
//! what no record owns is reclaimed.

use crate::{
    archive,
    error::{FileContext, Result},
    host::Host,
    machine::{self, Beginning},
    storage::Way,
};
use berth_hypervisor::Known;
use berth_types::{Failure, Machine, MachineId, State, Why};
use jiff::Timestamp;
use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

pub async fn recover(host: &Arc<Host>) -> Result<()> {
    // 1. The pool against the store.
    host.archive.load(|id| host.storage.directory(id))?;
    let machines = settle(host).await?;
    // 2. Processes against records.
    let mut processes = hypervisors(host.storage.machines())?;
    let mut networks = Vec::new();
    for mut record in machines.into_values() {
        let process = processes.remove(&record.id);
        host.ledger.count_machine(&record.owner, record.disk);
        let beginning = match adopt(host, &record, process).await {
            Some(beginning) => {
                networks.extend(record.runtime.as_ref().map(|runtime| runtime.netns.clone()));
                record.state = State::Starting;
                beginning
            }
            None => rest(host, &mut record, &mut networks).await?,
        };
        let handle = machine::spawn(host.clone(), record.clone(), beginning);
        host.fleet.add(&record.owner, &record.name, handle);
    }
    // 3. What nobody owns.
    end_unowned(host).await?;
    host.archive.sweep(|id| host.fleet.knows(id)).await;
    host.networks.keep_only(&networks).await
}

/// Ends hypervisors that no machine of the fleet has.
async fn end_unowned(host: &Host) -> Result<()> {
    for (id, (pid, started)) in hypervisors(host.storage.machines())? {
        if !host.fleet.knows(&id) {
            tracing::warn!(machine = %id, pid, "ending a hypervisor that no record owns");
            end(host, id, pid, started).await;
        }
    }
    Ok(())
}

/// A machine without a process: what has it come to?
async fn rest(host: &Host, record: &mut Machine, networks: &mut Vec<String>) -> Result<Beginning> {
    let has = host.storage.has(&record.id);
    let was = record.state;
    if record.sleeps_in.is_none() && !has.disk {
        // Its files had become a generation before the record could say so.
        let newest = host.archive.of(&record.id).into_iter().find(|one| one.why.is_automatic());
        record.sleeps_in = newest.map(|generation| generation.id.clone());
    } else if record.sleeps_in.is_none() && was == State::Suspending && has.memory {
        // Everything was saved, and its process had ended or was about to.
        let mut manifest = archive::manifest(record, Why::Sleep, host.driver.as_ref());
        if let Some(other) = record.runtime.as_ref().filter(|runtime| runtime.driver != manifest.driver) {
            // The driver was changed meanwhile: what wrote it is known by name only.
            manifest.driver.clone_from(&other.driver);
            manifest.driver_version.clear();
        }
        let frozen = host.archive.freeze(manifest, host.storage.directory(&record.id), Way::Move).await?;
        record.sleeps_in = Some(frozen.id.clone());
    }
    let asleep = record.sleeps_in.as_ref().and_then(|id| host.archive.get(id));
    let memory = asleep.is_some_and(|generation| generation.state_size > 0);
    if was.has_process() || (record.sleeps_in.is_some() && was == State::Stopped) {
        record.state = if memory { State::Asleep } else { State::Stopped };
        tracing::info!(machine = %record.id, %was, now = %record.state, "settled");
    }
    let network = match record.runtime.take() {
        Some(runtime) if record.state == State::Asleep => host.networks.find(&runtime.netns).await?,
        _ => None,
    };
    let beginning = match network {
        Some(mut network) => {
            network.taps = host.networks.taps(&network).await.ok();
            networks.push(network.name.clone());
            Beginning::Called(network)
        }
        None => {
            if record.state == State::Stopped && record.sleeps_in.is_none() {
                host.storage.forget_memory(&record.id);
            }
            Beginning::Down
        }
    };
    host.store.put_machine(record).await?;
    Ok(beginning)
}

/// Makes the store and the pool's directories agree.
async fn settle(host: &Host) -> Result<HashMap<MachineId, Machine>> {
    let records = host.store.machines()?;
    let lost_store = records.is_empty();
    let mut machines: HashMap<_, _> = records.into_iter().map(|record| (record.id.clone(), record)).collect();
    let survey = host.storage.survey()?;
    for id in survey.making {
        if machines.contains_key(&id) {
            host.storage.publish(&id).await?;
        } else {
            tracing::info!(machine = %id, "undoing a machine that was never finished");
            host.storage.remove(&id).await?;
        }
    }
    let removing =
        machines.values().filter(|record| record.state == State::Removing).map(|record| record.id.clone());
    let removing: HashSet<_> = removing.chain(survey.removing).collect();
    for id in &removing {
        tracing::info!(machine = %id, "finishing a removal");
        if let Some((pid, started)) = hypervisors(host.storage.machines())?.remove(id) {
            end(host, id.clone(), pid, started).await;
        }
        host.storage.remove(id).await?;
        host.store.remove_machine(id).await?;
        machines.remove(id);
    }
    for (id, mirror) in survey.whole {
        if machines.contains_key(&id) || removing.contains(&id) {
            continue;
        }
        match mirror {
            // Nobody's: a template that was being made.
            Some(record) if host.registry.user(&record.owner).is_none() => {
                tracing::info!(machine = %id, "undoing a template that was not finished");
                if let Some((pid, started)) = hypervisors(host.storage.machines())?.remove(&id) {
                    end(host, id.clone(), pid, started).await;
                }
                host.storage.remove(&id).await?;
            }
            Some(record) if lost_store => {
                tracing::warn!(machine = %id, "rebuilt a machine's record from its directory");
                host.store.put_machine(&record).await?;
                machines.insert(id, record);
            }
            _ => tracing::warn!(machine = %id, "a directory without a record; left alone"),
        }
    }
    let missing = |record: &Machine| !host.storage.directory(&record.id).is_dir();
    // A copy's record is on the disk before its directory is, and it is acknowledged
    // when it has been up.
    let unfinished = machines.values().filter(|record| record.fresh && missing(record));
    for id in unfinished.map(|record| record.id.clone()).collect::<Vec<_>>() {
        tracing::info!(machine = %id, "undoing a machine that was never finished");
        host.store.remove_machine(&id).await?;
        machines.remove(&id);
    }
    for record in machines.values_mut() {
        if missing(record) {
            tracing::error!(machine = %record.id, "its directory is missing");
            let reason = "its files are missing from the pool".to_owned();
            record.failure = Some(Failure { reason, at: Timestamp::now() });
            record.state = State::Failed;
            host.store.put_machine(record).await?;
        }
    }
    Ok(machines)
}

async fn adopt(host: &Host, record: &Machine, process: Option<(i32, u64)>) -> Option<Beginning> {
    let (pid, started) = process?;
    let runtime = record.runtime.as_ref().filter(|_| record.state.has_process());
    if let Some(other) = runtime.map(|runtime| &runtime.driver).filter(|name| *name != host.driver.name()) {
        tracing::error!(machine = %record.id, driver = other, "it runs under another driver; ending it");
        end(host, record.id.clone(), pid, started).await;
        return None;
    }
    let network = match runtime {
        Some(runtime) => host.networks.find(&runtime.netns).await.unwrap_or_default(),
        None => None,
    };
    let known = known(host, record.id.clone(), pid, started);
    match (host.driver.adopt(known).await, network) {
        (Ok(Some(vm)), Some(network)) => {
            tracing::info!(machine = %record.id, pid, "adopted a running machine");
            Some(Beginning::Adopted(vm, network))
        }
        (Ok(None), _) => None,
        (adopted, _) => {
            if let Err(error) = adopted {
                tracing::error!(machine = %record.id, %error, "cannot adopt a hypervisor");
            }
            end(host, record.id.clone(), pid, started).await;
            None
        }
    }
}

async fn end(host: &Host, id: MachineId, pid: i32, started: u64) {
    if let Err(error) = berth_hypervisor::end(&known(host, id, pid, started)).await {
        tracing::error!(pid, %error, "cannot end a hypervisor");
    }
}

fn known(host: &Host, id: MachineId, pid: i32, started: u64) -> Known {
    let (directory, socket) = (host.storage.directory(&id), host.vm_socket(&id));
    Known { id, pid, started, directory, socket }
}

/// Every process whose working directory is a machine's: that is a hypervisor,
/// whether or not hostd lived to write its pid down.
pub fn hypervisors(machines: &Path) -> Result<HashMap<MachineId, (i32, u64)>> {
    let mut found = HashMap::new();
    for entry in std::fs::read_dir("/proc").file("list", "/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let Ok(directory) = std::fs::read_link(entry.path().join("cwd")) else { continue };
        if directory.parent() != Some(machines) {
            continue;
        }
        let id = directory.file_name().and_then(|name| name.to_str()?.parse::<MachineId>().ok());
        if let (Some(id), Some(started)) = (id, start_time(pid)) {
            found.insert(id, (pid, started));
        }
    }
    Ok(found)
}

/// Field 22 of /proc/PID/stat, counted behind the name, which may contain anything.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}
