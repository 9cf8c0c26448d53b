//! The ways down: a stop, an end of its own, a failure, a removal.

use super::actor::{Actor, Up};
use crate::{
    error::Result,
    guest::{Control, printable},
    machine::power::Powered,
};
use berth_guest_client::GuestError;
use berth_hypervisor::Exit;
use berth_types::{Event, Failure, Machine, MachineId, State, next};
use jiff::Timestamp;
use tokio::time::timeout;

impl Actor {
    /// Disk only: memory is let go, and a sleeping machine's disk becomes its own again.
    pub async fn stop(&mut self) -> Result<()> {
        let state = next(self.record.state, Event::Stop)?;
        // It has to run to shut down. One that no longer can has lost its power by now.
        if self.record.state == State::Paused
            && let Err(error) = self.unpause(&mut Vec::new()).await
        {
            tracing::warn!(machine = %self.record.id, error = error.chain(), "did not go on to shut down");
            self.host.storage.forget_memory(&self.record.id);
            self.down(Event::Down).await;
            return Ok(());
        }
        if self.up.is_none() {
            return self.wake_disk_only().await;
        }
        let failure = self.record.failure.take();
        if let Err(error) = self.become_state(state).await {
            self.record.failure = failure;
            return Err(error);
        }
        let Some(mut up) = self.up.take() else { return Ok(()) };
        up.monitor = None;
        self.ask_to_shut_down(&up.powered).await;
        self.power_off(up).await;
        self.down(Event::Down).await;
        Ok(())
    }

    /// The disk that it slept with; the generation stays, as policy says.
    async fn wake_disk_only(&mut self) -> Result<()> {
        let before = self.record.clone();
        if let Some(asleep) = &before.sleeps_in {
            let directory = self.host.storage.directory(&self.record.id);
            self.host.archive.thaw_disk(asleep, directory, self.record.uid).await?;
            self.host.storage.mark_awake(&self.record.id, asleep).await?;
            self.record.woke_from = self.record.sleeps_in.take();
            self.record.runtime = None;
        }
        self.record.failure = None;
        if let Err(error) = self.become_state(State::Stopped).await {
            // It sleeps on where it slept: the disk that was laid out is laid out anew.
            self.record = before;
            self.sleeps_on().await;
            return Err(error);
        }
        let Some(asleep) = before.sleeps_in else { return Ok(()) };
        if let Some(kept) = self.kept.take() {
            kept.network.link.hang_up().await;
            self.host.give_back(&kept.network.name);
        }
        let host = self.host.clone();
        tokio::spawn(async move { host.archive.release(&asleep).await });
        Ok(())
    }

    /// A clean shutdown if the guest is able to, within the configured time.
    async fn ask_to_shut_down(&self, powered: &Powered) {
        let limit = self.host.config.machine.stop_timeout.duration();
        let clean = timeout(limit, async {
            let mut control = Control::when_up(&powered.network.link).await?;
            control.shut_down().await?;
            powered.vm.wait().await;
            Ok::<_, GuestError>(())
        });
        if !matches!(clean.await, Ok(Ok(()))) {
            tracing::warn!(machine = %self.record.id, "did not shut down in time; its power is cut");
        }
    }

    async fn power_off(&self, up: Up) {
        up.powered.cut(&self.host).await;
        self.host.storage.forget_memory(&self.record.id);
    }

    pub async fn exited(&mut self, exit: Exit) {
        let Some(up) = self.up.take() else { return };
        self.power_off(up).await;
        match exit {
            Exit::Clean => self.down(Event::Down).await,
            Exit::Reboot => {
                self.down(Event::Down).await;
                self.start(Vec::new()).await;
            }
            other => self.broke(other.to_string()).await,
        }
    }

    pub async fn lost(&mut self, reason: String) {
        if let Some(up) = self.up.take() {
            self.power_off(up).await;
        }
        self.broke(reason).await;
    }

    pub async fn broke(&mut self, reason: String) {
        let reason = match last_line(&self.host.storage.console(&self.record.id, 4096).await) {
            Some(line) => format!("{}; its console ends: {line}", printable(&reason)),
            None => printable(&reason),
        };
        tracing::warn!(machine = %self.record.id, reason, "a machine failed");
        self.record.failure = Some(Failure { reason, at: Timestamp::now() });
        self.down(Event::Broke).await;
    }

    /// The process is gone; the record follows.
    pub async fn down(&mut self, event: Event) {
        self.record.runtime = None;
        self.paused = None;
        let state = match next(self.record.state, event) {
            // Its memory is still where it slept: a start that failed lost nothing.
            Ok(State::Stopped) if self.record.sleeps_in.is_some() => State::Asleep,
            Ok(state) => state,
            Err(_) => return,
        };
        self.sleeps_on().await;
        let _ = self.is_now(state).await;
    }

    /// What came of a wake was given up: where it slept is what it has.
    async fn sleeps_on(&self) {
        let Some(asleep) = &self.record.sleeps_in else { return };
        if let Err(error) = self.host.storage.unmark_awake(&self.record.id, asleep).await {
            tracing::error!(machine = %self.record.id, error = error.chain(), "after a reboot it will not resume");
        }
    }

    pub async fn remove(&mut self) -> Result<()> {
        // 1. From here on a crash finishes the removal.
        let state = next(self.record.state, Event::Remove)?;
        self.become_state(state).await?;
        // 2. No process, no network.
        if let Some(up) = self.up.take() {
            up.powered.cut(&self.host).await;
        }
        if let Some(kept) = self.kept.take() {
            kept.network.link.hang_up().await;
            self.host.give_back(&kept.network.name);
        }
        // 3. No files, no record, no points in time.
        //    Their removal is durable before the record's: a directory without one is
        //    taken for a machine that the store has lost.
        self.host.storage.remove(&self.record.id).await?;
        self.host.storage.sync_directories().await?;
        if let Some(asleep) = self.record.sleeps_in.take() {
            self.host.archive.release(&asleep).await;
        }
        self.host.archive.forget_machine(&self.record.id).await;
        self.host.store.remove_machine(&self.record.id).await?;
        // 4. The name and the quota are free.
        let Machine { owner, name, id, disk, .. } = &self.record;
        self.host.fleet.forget(owner, name, id);
        self.host.ledger.forget_machine(owner, *disk);
        self.forget_secrets().await;
        self.record_event("removed".to_owned(), String::new()).await;
        Ok(())
    }
}

impl Actor {
    /// Those for machines alone of which neither they nor a fork is left.
    async fn forget_secrets(&self) {
        let owner = &self.record.owner;
        let left = self.host.fleet.of(owner);
        let orphaned = |only: &MachineId| {
            !left.iter().any(|handle| handle.id() == only || handle.record().lineage.contains(only))
        };
        let gone = |meta: &crate::secret::Meta| meta.machine.as_ref().is_some_and(orphaned);
        if let Err(error) = self.host.vault.forget(owner, gone).await {
            tracing::error!(machine = %self.record.id, error = error.chain(), "cannot forget its secrets");
        }
    }
}

fn last_line(console: &str) -> Option<String> {
    console.lines().rev().map(printable).find(|line| !line.trim().is_empty())
}
