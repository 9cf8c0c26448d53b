//! Templates: an image that is booted already, asleep, waiting to be copied.
//!
//! A machine's memory has one size for life, so there is a template for each
//! size that is asked for: those of the configuration are made when hostd
//! starts, others after the first machine of their size, and only few of these are
//! kept (`shelf`). Once one is ready a copy of
//! it is run for nobody (`trial`): what that touches is read ahead for the others.

mod shelf;
mod trial;

pub use shelf::Shelf;

use crate::{
    archive,
    error::{Error, Result},
    fault, guest,
    host::Host,
    machine::{self, Powered},
    storage::Way,
};
use berth_types::{ByteSize, Generation, Machine, MachineId, Size, UserId, Why};
use std::{sync::Arc, time::Duration};

const FREEZE: Duration = Duration::from_secs(60);
/// What most people run first: a command, and a shell to type in.
const FAMILIAR: &str = "exec \"$SHELL\" -lic true";

/// A template that such a machine can be a copy of, which is kept all the longer for it.
pub fn use_one(host: &Host, machine: &Machine) -> Option<Arc<Generation>> {
    find(host, machine).inspect(|found| host.templating.touch(&found.id))
}

fn find(host: &Host, machine: &Machine) -> Option<Arc<Generation>> {
    let wanted = host.storage.image_version(&machine.image)?;
    host.archive.template(|one, version| {
        version == wanted
            && (one.cpus, one.memory) == (machine.cpus, machine.memory)
            && one.disk <= machine.disk
            && host.driver.restores(&one.driver, &one.driver_version)
    })
}

/// One that has much the same in memory as the machine when it was new.
pub fn like(host: &Host, machine: &Machine) -> Option<Arc<Generation>> {
    host.archive.template(|one, _| (&one.image, one.memory) == (&machine.image, machine.memory))
}

/// Somebody wanted one that is not there: the next one finds it.
pub fn wanted(host: &Arc<Host>, machine: &Machine) {
    if host.config.idle.ready.is_empty() {
        return;
    }
    let (host, machine) = (host.clone(), machine.clone());
    let Some(place) = shelf::Waiting::queue(&host) else {
        tracing::debug!(memory = %machine.memory, "no template is made of this size: enough others wait");
        return;
    };
    tokio::spawn(async move {
        ensure(&host, &machine).await;
        drop(place);
    });
}

/// Makes those of the configuration, one after the other, and lets go of those
/// that fit no image or hypervisor any more.
pub async fn prepare(host: Arc<Host>) {
    for template in host.archive.templates() {
        let Why::Template { version } = &template.why else { continue };
        let current = host.storage.image_version(&template.image).is_some_and(|now| now == *version)
            && host.driver.restores(&template.driver, &template.driver_version)
            && !host.archive.is_torn(&template.id);
        if !current && let Err(error) = host.archive.remove(&template.id).await {
            tracing::debug!(error = error.chain(), "an outdated template is still in use");
        }
    }
    if let Err(error) = shelf::trim(&host, shelf::OTHERS, host.config.idle.ready_others.bytes()).await {
        tracing::warn!(error = error.chain(), "cannot remove a template");
    }
    for memory in host.config.idle.ready.clone() {
        let mut machine = blank(&host);
        (machine.memory, machine.disk) = (memory, host.config.machine.disk);
        ensure(&host, &machine).await;
    }
}

async fn ensure(host: &Arc<Host>, machine: &Machine) {
    // One at a time: templates are never urgent.
    let _turn = host.templating.turn.lock().await;
    let mut template = blank(host);
    template.image.clone_from(&machine.image);
    (template.cpus, template.memory) = (machine.cpus, machine.memory);
    // Most machines have the default disk: a template has it already, for to
    // grow a filesystem takes a guest as long as everything else together.
    // Whoever asked for less gets one with the image's own.
    if machine.disk >= host.config.machine.disk {
        template.disk = host.config.machine.disk;
    }
    if let Some(found) = find(host, machine).filter(|one| one.disk >= template.disk) {
        return trial::run(host, &found).await;
    }
    if host.is_closing() {
        return;
    }
    if !shelf::is_configured(host, &template.image, template.cpus, template.memory) {
        match shelf::make_room(host, template.memory.bytes()).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return tracing::warn!(error = error.chain(), "cannot remove a template"),
        }
    }
    for limit in [host.first_boot_limit(), host.boot_limit()] {
        let started = std::time::Instant::now();
        let machine = Machine { id: MachineId::random(), ..template.clone() };
        match make(host, machine, limit).await {
            Ok(generation) => {
                tracing::info!(
                    memory = %generation.memory,
                    cpus = generation.cpus,
                    ms = started.elapsed().as_millis(),
                    "a machine of this size is ready to be copied"
                );
                return trial::run(host, &generation).await;
            }
            Err(error) => tracing::warn!(error = error.chain(), "cannot make a template"),
        }
        if host.is_closing() {
            return;
        }
    }
}

/// Returns when no template is being made any more. One that is under way is
/// given up, for the service closes.
pub async fn none_under_way(host: &Host) {
    let _idle = host.templating.turn.lock().await;
}

async fn make(host: &Arc<Host>, mut machine: Machine, limit: Duration) -> Result<Arc<Generation>> {
    let Some(image) = host.storage.image(&machine.image) else {
        return Err(machine::missing_image(&machine.image).into());
    };
    let version = host.storage.image_version(&machine.image).unwrap_or_default();
    // Templates are never urgent: they leave the whole reserve to machines.
    host.storage.admit(machine.memory)?;
    machine.uid = host.store.take_uid(host.config.host.uid_base).await?;
    // The store has no record of it, and its own says what it is: whatever a crash
    // leaves of it is undone at the next start.
    host.storage.make(&machine, Some(&image)).await?;
    let made = boot_and_freeze(host, &machine, version, limit).await;
    host.storage.remove(&machine.id).await?;
    made
}

async fn boot_and_freeze(
    host: &Host,
    machine: &Machine,
    version: String,
    limit: Duration,
) -> Result<Arc<Generation>> {
    host.storage.publish(&machine.id).await?;
    let (memory, network) = machine::prepare(host, machine).await?;
    let powered = match machine::power(host, machine, memory, network, None).await {
        Ok(powered) => powered,
        Err((error, _, network)) => {
            host.give_back(&network.name);
            return Err(error);
        }
    };
    let saved = tokio::select! {
        saved = save(host, machine, &powered, limit) => saved,
        // A guest whose hypervisor is gone answers nothing, which would be waited for.
        exit = powered.vm.wait() => Err(Error::Guest(format!("it ended before it was saved: {exit}"))),
        () = host.closes() => Err(Error::Guest("the service closes".into())),
    };
    let heard = powered.heard.number();
    powered.cut(host).await;
    saved?;
    fault::point("template.saved");
    let mut manifest = archive::manifest(machine, Why::Template { version }, host.driver.as_ref());
    (manifest.machine, manifest.owner, manifest.guest) = (None, None, heard);
    manifest.disk = host.storage.disk_size(&machine.id);
    let generation = host.archive.freeze(manifest, host.storage.directory(&machine.id), Way::Move).await?;
    // Machines are acknowledged that are nothing but a copy of it.
    host.archive.sync(&generation.id).await?;
    Ok(generation)
}

async fn save(host: &Host, machine: &Machine, powered: &Powered, limit: Duration) -> Result<()> {
    let mut control = machine::greet(host, machine, powered, limit).await?;
    // No copy of it has to read these from its disk.
    if let Err(error) = guest::run(&powered.network.link, FAMILIAR, FREEZE).await {
        tracing::debug!(error = guest::describe(&error), "a template's copies will be slow at first");
    }
    let rehearse = host.driver.capabilities().rehearse;
    control.freeze(rehearse, FREEZE).await.map_err(machine::lost)?;
    control.part().await;
    machine::settled(powered.vm.as_ref()).await;
    powered.vm.pause().await?;
    powered.vm.save().await?;
    Ok(())
}

/// A machine of the default size with the image's own disk, marked as no user's.
fn blank(host: &Host) -> Machine {
    let defaults = &host.config.machine;
    let name = "template".parse().expect("a plain word is a name");
    let size = Size { cpus: defaults.cpus, memory: defaults.memory, disk: ByteSize(0) };
    let machine = Machine::new(UserId::random(), name, defaults.image.clone(), size);
    // Whoever is copied from it has an identity to renew; it has none itself.
    Machine { fresh: false, template: true, ..machine }
}
