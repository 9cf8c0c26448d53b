//! What a start moved aside: shown, given back to a user, or deleted. For the operator.

use crate::{
    error::Error,
    format::{self, Kind},
    host::Host,
    lost::Entry,
    machine::{self, Beginning},
};
use berth_api::{LostView, Reply};
use berth_types::{
    Code, Failure, Generation, GenerationId, LostKind, Machine, MachineId, MachineName, Refusal, Size, State,
    UserId,
};
use jiff::Timestamp;
use std::{os::unix::fs::MetadataExt as _, path::Path, sync::Arc};

pub fn list(host: &Host) -> Reply {
    Reply::Lost(host.lost.all().iter().map(view).collect())
}

pub fn show(host: &Host, entry: &str) -> Result<Reply, Refusal> {
    Ok(Reply::Lost(vec![view(&find(host, entry)?)]))
}

pub fn remove(host: &Host, entry: &str) -> Result<Reply, Refusal> {
    host.lost.remove(&find(host, entry)?)?;
    Ok(Reply::Done)
}

/// The disk becomes a machine of this user again, which boots from it; a machine that slept
/// in a saved state that is still there sleeps on.
pub async fn restore(
    host: &Arc<Host>,
    entry: &str,
    user: &UserId,
    name: Option<MachineName>,
) -> Result<Reply, Refusal> {
    // 1. What it will be.
    let entry = find(host, entry)?;
    if host.registry.user(user).is_none() {
        return Err(Refusal::new(Code::NotFound, "there is no such user", "see them with 'berth user ls'"));
    }
    let mut machine = plan(host, &entry, user, name)?;
    // 2. The name and the quota, given back if a later step fails.
    host.storage.admit(berth_types::ByteSize(0))?;
    host.fleet.reserve(user, &machine.name, &machine.id)?;
    if let Err(refusal) = host.ledger.admit_machine(user, machine.disk) {
        host.fleet.release(user, &machine.name, &machine.id);
        return Err(refusal);
    }
    // 3. Files, then the record, then the files' own name. A crash between any two
    //    leaves the disk where the next start moves it aside again.
    let made: Result<(), Error> = async {
        machine.uid = host.store.take_uid(host.config.host.uid_base).await?;
        host.storage.make(&machine, None).await?;
        host.storage.take_in(&entry.files, &machine).await?;
        host.store.put_machine(&machine).await?;
        host.store.sync().await?;
        host.storage.publish(&machine.id).await?;
        host.storage.sync_directories().await
    }
    .await;
    if let Err(error) = made {
        give_back(host, &entry, &machine).await;
        return Err(error.into());
    }
    // 4. Its task.
    let handle = machine::spawn(host.clone(), machine.clone(), Beginning::Down);
    host.fleet.add(user, &machine.name, handle.clone());
    tracing::warn!(entry = entry.id, machine = %machine.id, user = %user, "restored what had been moved aside");
    if let Err(error) = host.lost.remove(&entry) {
        tracing::error!(entry = entry.id, error = error.chain(), "cannot remove what is left of it");
    }
    Ok(Reply::Machine(Box::new(handle.view(host))))
}

async fn give_back(host: &Host, entry: &Entry, machine: &Machine) {
    let undone: Result<(), Error> = async {
        host.storage.give_back(&entry.files, &machine.id).await?;
        host.storage.remove(&machine.id).await?;
        host.store.remove_machine(&machine.id).await
    }
    .await;
    if let Err(error) = undone {
        tracing::error!(
            entry = entry.id,
            error = error.chain(),
            "cannot undo; the next start moves it aside"
        );
    }
    host.ledger.forget_machine(&machine.owner, machine.disk);
    host.fleet.release(&machine.owner, &machine.name, &machine.id);
}

fn plan(host: &Host, entry: &Entry, user: &UserId, name: Option<MachineName>) -> Result<Machine, Refusal> {
    if entry.note.kind == LostKind::Mirror {
        let message = "that is a file of hostd's, not a machine";
        return Err(Refusal::new(Code::Usage, message, format!("it is in {}", entry.files.display())));
    }
    let says = Says::of(&entry.files);
    let name = match name {
        Some(name) => name.for_new_machine()?,
        None => says.name.clone().ok_or_else(|| {
            let message = "its files do not say what it was called";
            Refusal::new(Code::Usage, message, "give it a name with --name")
        })?,
    };
    // A machine keeps its id, for its saved states are kept by that.
    let own: Option<MachineId> =
        entry.note.name.parse().ok().filter(|_| entry.note.kind == LostKind::Machine);
    let own = own.filter(|id| !host.fleet.knows(id) && !host.storage.directory(id).exists());
    let disk = std::fs::metadata(entry.files.join("disk")).map(|disk| berth_types::ByteSize(disk.len())).ok();
    let asleep =
        match &own {
            Some(id) => says.sleeps_in.iter().find_map(|asleep| host.archive.get(asleep)).or_else(|| {
                host.archive.of(id).into_iter().find(|one| disk.is_none() && one.why.is_automatic())
            }),
            None => None,
        };
    let Some(disk) = asleep.as_ref().map(|asleep| asleep.disk).or(disk) else {
        let hint = format!("look for yourself in {}", entry.files.display());
        return Err(Refusal::new(Code::Failed, "there is no disk in it", hint));
    };
    let defaults = &host.config.machine;
    let size = Size {
        cpus: says.cpus.unwrap_or(defaults.cpus).clamp(1, defaults.cpus_max),
        memory: says.memory.unwrap_or(defaults.memory).min(defaults.memory_max),
        disk,
    };
    let image = says.image.unwrap_or_else(|| defaults.image.clone());
    let mut machine = Machine::new(user.clone(), name, image, size);
    (machine.id, machine.fresh) = (own.unwrap_or_else(MachineId::random), false);
    if let Some(asleep) = asleep {
        machine.state = if asleep.state_size > 0 { State::Asleep } else { State::Stopped };
        machine.sleeps_in = Some(asleep.id.clone());
    }
    let reason = format!("it was moved aside ({}), and restored by the operator", entry.note.reason);
    machine.failure = Some(Failure { reason, at: Timestamp::now() });
    Ok(machine)
}

fn find(host: &Host, entry: &str) -> Result<Entry, Refusal> {
    host.lost.get(entry).ok_or_else(|| {
        Refusal::new(Code::NotFound, "there is no such entry", "see them with 'berth lost ls'")
    })
}

/// What is written in the files, by whomever: nothing of it is taken for granted.
#[derive(Debug, Default)]
struct Says {
    name: Option<MachineName>,
    owner: Option<UserId>,
    image: Option<String>,
    cpus: Option<u32>,
    memory: Option<berth_types::ByteSize>,
    sleeps_in: Option<GenerationId>,
}

impl Says {
    fn of(files: &Path) -> Self {
        let read = |name: &str| std::fs::read(files.join(name)).ok();
        let record: Option<Machine> =
            read("machine.json").and_then(|bytes| format::unverified(Kind::Machine, &bytes));
        if let Some(record) = record {
            return Self {
                name: Some(record.name),
                owner: Some(record.owner),
                image: Some(record.image),
                cpus: Some(record.cpus),
                memory: Some(record.memory),
                sleeps_in: record.sleeps_in,
            };
        }
        let manifest: Option<Generation> =
            read("manifest.json").and_then(|bytes| format::unverified(Kind::Snapshot, &bytes));
        manifest.map_or_else(Self::default, |generation| Self {
            name: Some(generation.name),
            owner: generation.owner,
            image: Some(generation.image),
            cpus: Some(generation.cpus),
            memory: Some(generation.memory),
            sleeps_in: None,
        })
    }
}

fn view(entry: &Entry) -> LostView {
    let says = Says::of(&entry.files);
    let found = std::fs::read_dir(&entry.files).into_iter().flatten().flatten();
    let mut files: Vec<_> = found
        .filter_map(|file| {
            let occupied = file.metadata().ok()?.blocks() * 512;
            Some((file.file_name().to_string_lossy().into_owned(), occupied))
        })
        .collect();
    files.sort();
    let own = entry.files.symlink_metadata().map_or(0, |found| found.blocks() * 512);
    let occupied = files.iter().map(|(_, occupied)| occupied).sum::<u64>() + own;
    LostView {
        entry: entry.id.clone(),
        kind: entry.note.kind,
        at: entry.note.at,
        reason: entry.note.reason.clone(),
        occupied: berth_types::ByteSize(occupied),
        machine: says.name,
        owner: says.owner,
        path: entry.files.display().to_string(),
        files: files.into_iter().map(|(name, _)| name).collect(),
    }
}
