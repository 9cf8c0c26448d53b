//! A new machine.

use super::Progress;
use crate::{
    error::Error,
    fault,
    host::Host,
    machine::{self, Beginning, Handle},
    quota,
    storage::ImageFiles,
    template,
};
use berth_api::Reply;
use berth_types::{
    ByteSize, Code, Generation, Labels, Machine, MachineId, MachineName, MachineSpec, Parent, Refusal, Size,
    Span, State, UserId, egress::EgressPolicy, is_label,
};
use jiff::Timestamp;
use std::sync::Arc;

const LEAST_MEMORY: ByteSize = ByteSize::mib(128);
const LABELS_MAX: usize = 32;
pub const NO_LABEL: &str = "a label is key=value, at most 256 bytes of plain text";
/// Forks of forks whose ancestors' own secrets are still theirs.
const LINEAGE_MAX: usize = 100;

/// Makes it and brings it up; a machine that does not come up is not left behind.
pub async fn new(
    host: &Arc<Host>,
    user: &UserId,
    spec: MachineSpec,
    progress: &Progress,
) -> Result<Reply, Refusal> {
    let handle = make(host, user, spec).await?;
    handle.touch();
    progress.say(format!("starting {}", handle.record().name));
    up_or_gone(&handle).await?;
    Ok(Reply::Machine(Box::new(handle.view(host))))
}

/// Brings a machine up that was made just now, or takes it back.
pub async fn up_or_gone(handle: &Handle) -> Result<(), Refusal> {
    let started = handle.start().await;
    if started.is_err() {
        take_back(handle).await;
    }
    started
}

pub async fn take_back(handle: &Handle) {
    if let Err(error) = handle.remove().await {
        tracing::error!(machine = %handle.id(), %error, "cannot undo a machine that did not start");
    }
}

/// Makes it, acknowledged on disk, and leaves it down: asleep in the image's
/// booted state where there is one that fits, else stopped.
pub async fn make(host: &Arc<Host>, user: &UserId, spec: MachineSpec) -> Result<Handle, Refusal> {
    let mut machine = plan(host, user, spec)?;
    let image = host.storage.image(&machine.image).ok_or_else(|| machine::missing_image(&machine.image))?;
    match template::use_one(host, &machine) {
        Some(template) => {
            machine.sleeps_in = Some(template.id.clone());
            machine.state = State::Asleep;
        }
        None => template::wanted(host, &machine),
    }
    create(host, machine, Some(&image)).await
}

/// A machine that sleeps in somebody's point in time, and wakes as itself.
///
/// Whoever acknowledges it has the directories synced first.
pub async fn from_generation(
    host: &Arc<Host>,
    user: &UserId,
    name: MachineName,
    generation: &Generation,
    heritage: Heritage,
    ttl: Option<Span>,
) -> Result<Handle, Refusal> {
    let Generation { image, cpus, memory, disk, .. } = generation;
    let size = Size { cpus: *cpus, memory: *memory, disk: *disk };
    let mut machine = Machine::new(user.clone(), name.for_new_machine()?, image.clone(), size);
    machine.state = if generation.state_size > 0 { State::Asleep } else { State::Stopped };
    machine.sleeps_in = Some(generation.id.clone());
    machine.parent = Some(heritage.parent);
    machine.labels = heritage.labels;
    machine.egress = heritage.egress;
    machine.lineage = heritage.lineage;
    machine.no_secrets = heritage.no_secrets;
    machine.expires = expiry(machine.created, ttl);
    create(host, machine, None).await
}

/// What a copy has of the machine that it is a copy of. What that may not reach,
/// the copy may not either.
#[derive(Clone, Debug)]
pub struct Heritage {
    parent: Parent,
    labels: Labels,
    egress: Option<EgressPolicy>,
    lineage: Vec<MachineId>,
    no_secrets: bool,
}

impl Heritage {
    pub fn of(source: &Machine, no_secrets: bool) -> Self {
        let older = source.lineage.len().saturating_sub(LINEAGE_MAX - 1);
        let mut lineage: Vec<MachineId> = source.lineage.iter().skip(older).cloned().collect();
        lineage.push(source.id.clone());
        Self {
            parent: Parent { machine: source.id.clone(), name: source.name.clone(), at: Timestamp::now() },
            labels: source.labels.clone(),
            egress: source.egress.clone(),
            lineage,
            no_secrets: no_secrets || source.no_secrets,
        }
    }
}

async fn create(
    host: &Arc<Host>,
    mut machine: Machine,
    image: Option<&ImageFiles>,
) -> Result<Handle, Refusal> {
    let owner = machine.owner.clone();
    // 1. There is room.
    host.storage.admit(machine.memory)?;
    quota::admit_points(host, &owner)?;
    // 2. The name and the quota are ours; each is given back if a later step fails.
    host.fleet.reserve(&owner, &machine.name, &machine.id)?;
    if let Err(refusal) = host.ledger.admit_machine(&owner, machine.disk) {
        host.fleet.release(&owner, &machine.name, &machine.id);
        return Err(refusal);
    }
    // 3. Files, under a name that says they are half-made; then the record;
    //    then the files' own name. A crash between any two is settled at start.
    let copy = image.is_none();
    let image = image.filter(|_| machine.sleeps_in.is_none());
    let made = async {
        machine.uid = host.store.take_uid(host.config.host.uid_base).await?;
        host.storage.make(&machine, image).await?;
        // A capture leaves the disk below much to do: a copy starts meanwhile.
        if copy {
            host.store.put_machine(&machine).await?;
            return host.storage.publish(&machine.id).await;
        }
        host.storage.sync_directories().await?;
        host.store.put_machine(&machine).await?;
        host.storage.publish(&machine.id).await?;
        tokio::try_join!(host.storage.sync_directories(), host.store.sync()).map(drop)
    };
    if let Err(error) = made.await {
        undo(host, &machine).await;
        return Err(error.into());
    }
    fault::point("fork.made");
    // 4. Its task.
    let handle = machine::spawn(host.clone(), machine.clone(), Beginning::Down);
    host.fleet.add(&owner, &machine.name, handle.clone());
    Ok(handle)
}

fn expiry(now: Timestamp, ttl: Option<Span>) -> Option<Timestamp> {
    now.checked_add(jiff::SignedDuration::try_from(ttl?.duration()).ok()?).ok()
}

async fn undo(host: &Host, machine: &Machine) {
    let undone: Result<(), Error> = async {
        host.storage.remove(&machine.id).await?;
        host.storage.sync_directories().await?;
        host.store.remove_machine(&machine.id).await
    }
    .await;
    // A record without files that has never been up is undone by the next start.
    if let Err(error) = undone {
        tracing::error!(machine = %machine.id, error = error.chain(), "cannot undo a half-made machine");
    }
    host.ledger.forget_machine(&machine.owner, machine.disk);
    host.fleet.release(&machine.owner, &machine.name, &machine.id);
}

/// Fills in the defaults and checks against what one machine may have.
fn plan(host: &Host, user: &UserId, spec: MachineSpec) -> Result<Machine, Refusal> {
    let defaults = &host.config.machine;
    let cpus = spec.cpus.unwrap_or(defaults.cpus);
    let memory = spec.memory.unwrap_or(defaults.memory);
    let disk = spec.disk.unwrap_or(defaults.disk);
    let image = spec.image.unwrap_or_else(|| defaults.image.clone());
    if cpus == 0 {
        return Err(Refusal::new(Code::Usage, "a machine has at least 1 CPU", "try --cpus 1"));
    }
    if cpus > defaults.cpus_max {
        return Err(too_much("CPUs", cpus, defaults.cpus_max, "--cpus"));
    }
    if memory < LEAST_MEMORY {
        return Err(Refusal::new(
            Code::Usage,
            format!("a machine needs at least {LEAST_MEMORY} of memory"),
            "try --memory 512M",
        ));
    }
    if memory > defaults.memory_max {
        return Err(too_much("memory", memory, defaults.memory_max, "--memory"));
    }
    if disk > defaults.disk_max {
        return Err(too_much("disk", disk, defaults.disk_max, "--disk"));
    }
    let least = host
        .storage
        .image(&image)
        .and_then(|files| std::fs::metadata(files.disk).ok())
        .map(|stat| ByteSize(stat.len()));
    if let Some(least) = least.filter(|least| disk < *least) {
        return Err(Refusal::new(
            Code::Usage,
            format!("that image needs at least {least} of disk"),
            format!("try --disk {least}"),
        ));
    }
    if spec.labels.len() > LABELS_MAX {
        return Err(Refusal::new(
            Code::Usage,
            format!("a machine has at most {LABELS_MAX} labels"),
            "leave some out",
        ));
    }
    if !spec.labels.iter().all(|(key, value)| is_label(key, value)) {
        return Err(Refusal::new(Code::Usage, NO_LABEL, "try --label team=web"));
    }
    let size = Size {
        cpus,
        // Whole pages, or the RAM file does not fit its mapping.
        memory: ByteSize(memory.bytes().next_multiple_of(2 << 20)),
        disk: ByteSize(disk.bytes().next_multiple_of(4096)),
    };
    let mut machine = Machine::new(user.clone(), spec.name.for_new_machine()?, image, size);
    machine.labels = spec.labels;
    machine.expires = expiry(machine.created, spec.ttl);
    Ok(machine)
}

fn too_much(what: &str, asked: impl std::fmt::Display, most: impl std::fmt::Display, flag: &str) -> Refusal {
    let message = format!("{asked} {what} is more than one machine may have");
    Refusal::new(Code::Limit, message, format!("the most is {flag} {most}"))
}
