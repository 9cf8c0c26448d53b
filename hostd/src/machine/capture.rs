//! Points in time: frozen while the machine goes on, and gone back to.

use super::{actor::Actor, still::For};
use crate::{
    archive,
    error::{Error, Result, pool_full},
    fault,
    storage::Way,
};
use berth_types::{Code, Event, Generation, GenerationId, Point, Refusal, State, Why, next};
use std::{sync::Arc, time::Instant};

/// What is left to do after a restore.
pub struct Restored {
    /// It was up, and should be again.
    pub wakes: bool,
    /// What it slept in, or was put into.
    pub aside: Option<GenerationId>,
}

impl Actor {
    /// Freezes this moment. The generation is returned held.
    pub async fn capture(&mut self, why: Why, copies: usize) -> Result<Arc<Generation>> {
        if let Why::Snapshot(label) = &why {
            let taken = self.host.archive.point(&self.record.id, &Point::Label(label.clone())).is_ok();
            if taken {
                let hint = format!("choose another label, or 'snapshot rm {} {label}'", self.record.name);
                return Err(Refusal::new(
                    Code::Conflict,
                    format!("there is a snapshot '{label}' already"),
                    hint,
                )
                .into());
            }
        }
        self.host.storage.admit(berth_types::ByteSize(0))?;
        if self.record.hold().is_some() {
            return Err(pool_full().into());
        }
        let archive = &self.host.archive;
        let generation = match (self.record.state, self.record.sleeps_in.clone()) {
            (State::Running, _) => self.capture_running(why, copies).await?,
            (State::Paused, _) => self.freeze(why, Way::Share).await?,
            // Asleep, or not started since a restore: what it sleeps in is frozen already.
            (_, Some(asleep)) if why == Why::Fork => {
                archive.get(&asleep).ok_or_else(|| Error::Guest("its memory is missing".into()))?
            }
            (_, Some(asleep)) => {
                archive.copy(&asleep, archive::manifest(&self.record, why, self.host.driver.as_ref())).await?
            }
            // Only a disk.
            (State::Stopped | State::Failed, None) => {
                let directory = self.host.storage.directory(&self.record.id);
                let manifest = archive::manifest(&self.record, why, self.host.driver.as_ref());
                archive.freeze(manifest, directory, Way::Share).await?
            }
            (state, None) => {
                let message = format!("the machine is {state}");
                return Err(Refusal::new(Code::Conflict, message, "try again in a moment").into());
            }
        };
        self.host.archive.hold(&generation.id);
        if generation.why != Why::Fork {
            // What is only there to be forked from is gone in a moment.
            self.host.archive.sync_later(&generation.id);
        }
        Ok(generation)
    }

    async fn capture_running(&mut self, why: Why, copies: usize) -> Result<Arc<Generation>> {
        // 1. What a reflink would have to flush is flushed while the machine runs, and most
        //    of its memory cloned.
        let early = self.host.storage.prepare_capture(&self.record.id, self.busy.clone()).await?;
        // 2. It stands still for milliseconds.
        let what = if copies > 1 { For::Captures } else { For::Capture };
        let clock = Instant::now();
        let still = self.quiesce(what).await?;
        let stood = clock.elapsed();
        fault::point("capture.frozen");
        let frozen = self.freeze(why, early.map_or(Way::Share, Way::Finish)).await;
        let shared = clock.elapsed();
        // 3. It goes on, whatever became of that.
        self.go_on(still).await;
        if let Ok(generation) = &frozen {
            // Whoever clones it next would wait for what was copied into it.
            self.host.archive.write_out_later(&generation.id);
        }
        tracing::debug!(machine = %self.record.id, ?stood, ?shared, went_on = ?clock.elapsed(), "captured");
        frozen
    }

    /// Devices saved, files shared. The vCPUs stand still.
    async fn freeze(&mut self, why: Why, way: Way) -> Result<Arc<Generation>> {
        let Some(up) = &self.up else { return Err(Error::Guest("it has no process".into())) };
        up.powered.vm.save().await?;
        fault::point("capture.saved");
        let directory = self.host.storage.directory(&self.record.id);
        let manifest = archive::manifest(&self.record, why, self.host.driver.as_ref());
        let manifest = Generation { guest: up.powered.heard.number(), ..manifest };
        let frozen = self.host.archive.freeze(manifest, directory, way).await;
        // Device state must never meet RAM that has gone on without it.
        self.host.storage.forget_state(&self.record.id);
        fault::point("capture.shared");
        frozen
    }

    /// Goes back to a point in time. What is now becomes a generation first.
    pub async fn restore(&mut self, point: &Point) -> Result<Restored> {
        // 1. Where to, before anything is touched.
        let target = self.host.archive.hold_point(&self.record.id, point)?;
        if let Err(error) = self.host.archive.verify_whole(&target.id).await {
            self.host.archive.release(&target.id).await;
            return Err(error);
        }
        let was_up = matches!(self.record.state, State::Running | State::Paused);
        // 2. What is now, aside, and durably: what is left of it in the machine's directory
        //    would be taken for what was restored.
        let moved = match self.set_aside().await {
            Ok(()) => {
                let storage = &self.host.storage;
                tokio::try_join!(
                    storage.sync_directories(),
                    storage.unmark_awake(&self.record.id, &target.id)
                )
                .map(drop)
            }
            failed => failed,
        };
        if let Err(error) = moved {
            self.stay(&target.id, was_up).await;
            return Err(error);
        }
        fault::point("restore.aside");
        // 3. It sleeps in the past from here on; waking does the rest.
        let (aside, failure) = (self.record.sleeps_in.replace(target.id.clone()), self.record.failure.take());
        let memory = target.state_size > 0;
        let state = if memory { State::Asleep } else { State::Stopped };
        if let Err(error) = self.become_state(state).await {
            (self.record.sleeps_in, self.record.failure) = (aside, failure);
            self.stay(&target.id, was_up).await;
            return Err(error);
        }
        fault::point("restore.set");
        Ok(Restored { wakes: was_up || memory, aside })
    }

    /// It does not go back to the target: it is where it was, and up again if it was up.
    async fn stay(&mut self, target: &GenerationId, was_up: bool) {
        self.host.archive.release(target).await;
        if was_up && self.record.state == State::Asleep {
            self.start(Vec::new()).await;
        }
    }

    /// When nobody waits for the disk any more.
    pub fn restored(&self, aside: GenerationId) {
        let host = self.host.clone();
        tokio::spawn(async move {
            host.archive.sync_later(&aside);
            host.archive.release(&aside).await;
        });
    }

    /// Leaves the machine without a process and without files of its own.
    async fn set_aside(&mut self) -> Result<()> {
        match self.record.state {
            State::Running | State::Paused => self.suspend(Why::Restore).await,
            State::Asleep => Ok(()),
            State::Stopped | State::Failed if self.record.sleeps_in.is_some() => Ok(()),
            State::Stopped | State::Failed => {
                let directory = self.host.storage.directory(&self.record.id);
                let manifest = archive::manifest(&self.record, Why::Restore, self.host.driver.as_ref());
                let aside = self.host.archive.freeze(manifest, directory, Way::Move).await?;
                // Its only disk is there now.
                self.host.archive.hold(&aside.id);
                self.record.sleeps_in = Some(aside.id.clone());
                Ok(())
            }
            state => next(state, Event::Suspend).map(drop).map_err(Error::from),
        }
    }
}
