//! After a start: what does the disk say, what still runs, and who owns it?
//!
//! Nothing acknowledged is lost. What is half-made is finished or undone; what cannot be
//! placed is moved aside with the reason (`lost`), and nothing with a disk in it is deleted
//! on doubt. What is wrong with one machine fails that machine, never the service.
//!
//! ```text
//!   snapshots    put back, moved aside, or in the index        archive, lost
//!   directories  against records, mirrors merged               directories
//!   processes    adopted, or ended                             processes
//!   machines     one by one: what has each come to?            rest
//!   the rest     hypervisors, saved states and networks that no machine has
//! ```

mod directories;
mod processes;
mod rest;

pub use processes::{Hypervisor, Hypervisors};

use crate::{
    error::Result,
    host::Host,
    machine::{self, Beginning},
};
use berth_hypervisor::Known;
use berth_types::{Failure, GenerationId, Machine, MachineId, State};
use jiff::Timestamp;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

type Machines = HashMap<MachineId, Machine>;

pub async fn recover(host: &Arc<Host>) -> Result<()> {
    // 1. The pool against the store.
    let unusable = host.archive.load(&host.lost, |id| host.storage.directory(id))?;
    let survey = host.storage.survey()?;
    let records = host.store.machines()?;
    let found = survey.whole.iter().chain(&survey.making);
    let mirrored: Vec<Machine> = found.filter_map(|found| found.record.as_ref().ok().cloned()).collect();
    let had =
        records.iter().chain(&mirrored).map(|machine| machine.uid).chain(host.storage.lost_uids(&host.lost));
    host.store.raise_uid(had.max().unwrap_or(0)).await?;
    let mut processes = Hypervisors::find(host.storage.machines(), records.iter().chain(&mirrored))?;
    let machines = directories::settle(host, records, survey, &mut processes).await;
    move_aside(host, unusable, &machines);
    // 2. Processes against records.
    let mut networks = Vec::new();
    for mut record in machines.into_values() {
        let process = processes.take(&record.id, record.runtime.as_ref());
        host.ledger.count_machine(&record.owner, record.disk);
        let beginning = match adopt(host, &record, process).await {
            Some(beginning) => {
                networks.extend(record.runtime.as_ref().map(|runtime| runtime.netns.clone()));
                record.state = State::Starting;
                beginning
            }
            None => match rest::rest(host, &mut record, &mut networks).await {
                Ok(beginning) => beginning,
                Err(error) => {
                    fail(
                        host,
                        &mut record,
                        &format!("it could not be looked at after a start: {}", error.chain()),
                    )
                    .await;
                    Beginning::Down
                }
            },
        };
        if let Err(error) = host.storage.mirror(&record).await {
            tracing::error!(machine = %record.id, error = error.chain(), "cannot mirror a record");
        }
        let handle = machine::spawn(host.clone(), record.clone(), beginning);
        host.fleet.add(&record.owner, &record.name, handle);
    }
    host.signer.all_signed()?;
    // 3. What no record owns.
    for (id, process) in processes.rest() {
        tracing::warn!(machine = %id, pid = process.pid, "ending a hypervisor that no record owns");
        end(host, &id, &[process]).await;
    }
    let lost: HashSet<MachineId> = host.lost.machines().into_iter().collect();
    // What could not be moved aside was left alone, and may sleep in one of them.
    host.archive
        .sweep(|id| host.fleet.knows(id) || lost.contains(id) || host.storage.has_directory(id))
        .await;
    // What an earlier hostd was about to sync when it ended.
    let later = host.clone();
    tokio::spawn(async move {
        later.a_while().await;
        later.archive.sync_all().await;
    });
    host.networks.keep_only(&networks).await
}

/// Saved states that cannot be used are kept where they are for a machine that sleeps in
/// one, for it boots from the disk there; all others are moved aside.
fn move_aside(host: &Host, unusable: Vec<(GenerationId, String)>, machines: &Machines) {
    let slept_in: HashSet<_> = machines.values().filter_map(|record| record.sleeps_in.as_ref()).collect();
    for (id, reason) in unusable {
        if slept_in.contains(&id) {
            tracing::error!(generation = %id, reason, "a machine sleeps in what cannot be used: it will boot");
        } else if let Err(error) = host.archive.move_aside(&id, &host.lost, &reason) {
            tracing::error!(generation = %id, error = error.chain(), "cannot move it aside; left alone");
        }
    }
}

/// Writes down what is wrong with one machine; the others are not concerned.
async fn fail(host: &Host, record: &mut Machine, reason: &str) {
    tracing::error!(machine = %record.id, reason, "a machine failed");
    record.failure = Some(Failure { reason: reason.to_owned(), at: Timestamp::now() });
    record.state = State::Failed;
    if let Err(error) = host.store.put_machine(record).await {
        tracing::error!(machine = %record.id, error = error.chain(), "cannot write a record");
    }
}

/// Goes on with a hypervisor that outlived hostd. One that it cannot go on with is
/// ended, and so is every further process of the same machine.
async fn adopt(host: &Host, record: &Machine, mut processes: Vec<Hypervisor>) -> Option<Beginning> {
    if processes.is_empty() {
        return None;
    }
    let first = processes.remove(0);
    end(host, &record.id, &processes).await;
    let runtime = record.runtime.as_ref().filter(|_| record.state.has_process());
    if let Some(other) = runtime.map(|runtime| &runtime.driver).filter(|name| *name != host.driver.name()) {
        tracing::error!(machine = %record.id, driver = other, "it runs under another driver; ending it");
        end(host, &record.id, &[first]).await;
        return None;
    }
    let network = match runtime {
        Some(runtime) => host.networks.find(&runtime.netns).await.unwrap_or_default(),
        None => None,
    };
    match (host.driver.adopt(known(host, &record.id, first), record.uid).await, network) {
        (Ok(Some(vm)), Some(network)) => {
            tracing::info!(machine = %record.id, pid = first.pid, "adopted a running machine");
            Some(Beginning::Adopted(vm, network))
        }
        (Ok(None), _) => None,
        (adopted, _) => {
            if let Err(error) = adopted {
                tracing::error!(machine = %record.id, %error, "cannot adopt a hypervisor");
            }
            end(host, &record.id, &[first]).await;
            None
        }
    }
}

async fn end(host: &Host, id: &MachineId, processes: &[Hypervisor]) {
    for process in processes {
        if let Err(error) = berth_hypervisor::end(&known(host, id, *process)).await {
            tracing::error!(pid = process.pid, %error, "cannot end a hypervisor");
        }
    }
}

fn known(host: &Host, id: &MachineId, Hypervisor { pid, started }: Hypervisor) -> Known {
    let (directory, socket) = (host.storage.directory(id), host.vm_socket(id));
    Known { id: id.clone(), pid, started, directory, socket }
}
