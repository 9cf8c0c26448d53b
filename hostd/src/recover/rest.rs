//! What a machine without a process has come to.

use super::fail;
use crate::{
    archive::{self, TORN},
    error::Result,
    host::Host,
    machine::Beginning,
    storage::Way,
};
use berth_types::{Failure, GenerationId, Machine, State, Why};
use jiff::Timestamp;

/// A machine without a process: what has it come to?
pub async fn rest(host: &Host, record: &mut Machine, networks: &mut Vec<String>) -> Result<Beginning> {
    let has = host.storage.has(&record.id);
    let was = record.state;
    let has_disk = |id: &GenerationId| host.storage.generations().has_disk(id);
    let boot = record.runtime.as_ref().and_then(|runtime| runtime.boot.clone());
    let same_boot = boot.as_ref() == Some(host.storage.boot());
    let mut lost = match was {
        _ if boot.is_none() || same_boot || !was.has_process() => None,
        State::Suspending => {
            Some("the host went down while it went to sleep: its memory is lost, and it boots from its disk")
        }
        _ => Some("the host went down while it ran: its memory is lost, and it boots from its disk"),
    };
    // 1. Where it slept, if it is there and nothing newer is.
    if let Some(gone) = record.sleeps_in.take_if(|id| !has_disk(id)) {
        boots(record, &format!("what it slept in ({gone}) is missing: its memory is lost"));
    }
    let woke = host.storage.woke_before_reboot(&record.id)?;
    if let Some(woken) = record.sleeps_in.take_if(|id| woke.contains(id)) {
        // The store has lost what came after it. What the guest has synced since is in the
        // machine's own disk, or in what it was put to sleep in.
        record.woke_from = Some(woken);
        lost = Some("the host went down while it ran: its memory is lost, and it boots from its disk");
    }
    // 2. Else its own files, or what they have become.
    if record.sleeps_in.is_none() && !has.disk {
        // If it ran since it last woke, its files became its newest saved state before the
        // record could say so: hostd ended in between. If it did not, a power failure took what
        // was laid out for that wake, and it sleeps where it slept.
        let newest = host.archive.of(&record.id).into_iter().find(|one| one.why.is_automatic());
        let newest = newest.map(|generation| generation.id.clone());
        let ran = match &record.woke_from {
            Some(from) => host.storage.woke_from(&record.id, from)?,
            None => true,
        };
        let woke_from = record.woke_from.clone().filter(has_disk);
        record.sleeps_in = if ran { newest.or(woke_from) } else { woke_from.or(newest) };
        if record.sleeps_in.is_none() {
            let reason = "its disk is missing from the pool; 'berth lost ls' on the host may have it";
            fail(host, record, reason).await;
            return Ok(Beginning::Down);
        }
    } else if record.sleeps_in.is_none() && was == State::Suspending && has.memory && same_boot {
        // Everything was saved, and its process had ended or was about to. In an earlier boot
        // of the host, any part of that may not have reached the disk.
        let mut manifest = archive::manifest(record, Why::Sleep, host.driver.as_ref());
        if let Some(other) = record.runtime.as_ref().filter(|runtime| runtime.driver != manifest.driver) {
            // The driver was changed meanwhile: what wrote it is known by name only.
            manifest.driver.clone_from(&other.driver);
            manifest.driver_version.clear();
        }
        let frozen = host.archive.freeze(manifest, host.storage.directory(&record.id), Way::Move).await?;
        record.sleeps_in = Some(frozen.id.clone());
    }
    // 3. The record says so.
    if let Some(asleep) = record.sleeps_in.clone() {
        host.storage.unmark_awake(&record.id, &asleep).await?;
    }
    let asleep = record.sleeps_in.as_ref().and_then(|id| host.archive.get(id));
    let memory = asleep.is_some_and(|generation| generation.state_size > 0);
    let torn = record.sleeps_in.as_ref().is_some_and(|id| host.archive.is_torn(id));
    let moved = was == State::Asleep && (torn || record.sleeps_in.is_none());
    if was.has_process() || moved || (record.sleeps_in.is_some() && was == State::Stopped) {
        record.state = if memory && !torn { State::Asleep } else { State::Stopped };
        tracing::info!(machine = %record.id, %was, now = %record.state, "settled");
    }
    if memory && torn {
        boots(record, &format!("its memory cannot be resumed, it boots from its disk: {TORN}"));
    } else if let Some(reason) = lost.filter(|_| record.state == State::Stopped) {
        boots(record, reason);
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

/// Its memory is gone, which its user is told.
fn boots(record: &mut Machine, reason: &str) {
    tracing::error!(machine = %record.id, reason, "it will boot from its disk");
    record.failure = Some(Failure { reason: reason.to_owned(), at: Timestamp::now() });
}
