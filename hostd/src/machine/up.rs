//! Bringing a machine up: from its disk, from its memory, or from a pause.

use super::{
    Answer, Ask,
    actor::{Actor, Up, reply},
    monitor::{Monitor, Watched},
    power::{Powered, admit_room, greet, power, prepare, resume},
};
use crate::{
    error::{Error, Result},
    fault,
    guest::{Control, printable},
    ledger::MemoryLease,
    net::Network,
};
use berth_types::{Code, Event, Failure, Machine, Refusal, Runtime, State, next};
use jiff::Timestamp;
use std::time::Instant;

impl Actor {
    pub async fn start(&mut self, mut answers: Vec<Answer>) {
        if self.record.state == State::Paused && self.up.is_some() {
            if self.record.hold().is_some()
                && let Err(full) = self.host.storage.admit_held()
            {
                answers.into_iter().for_each(|answer| reply(answer, Err(full.clone().into())));
                return;
            }
            if let Err(error) = self.unpause(&mut answers).await {
                self.did_not_start(error, answers).await;
            }
            return;
        }
        let mut anew = true;
        loop {
            match self.bring_up().await {
                Ok(powered) => match self.wait_for_guest(powered, answers, std::mem::take(&mut anew)).await {
                    Some(again) => answers = again,
                    None => return,
                },
                Err(error) => return self.did_not_start(error, answers).await,
            }
        }
    }

    /// A hypervisor that outlived hostd. It may have been caught in the middle
    /// of a pause or a capture, so its vCPUs are told to run.
    pub async fn adopted(&mut self, powered: Powered) {
        // What it saved before hostd ended must never meet the RAM that goes on now.
        self.host.storage.forget_state(&self.record.id);
        self.host.link(&self.record, &powered.network);
        let going = async {
            if let Some(asleep) = &self.record.sleeps_in {
                // The hostd before may have ended between laying files out and saying so.
                self.host.storage.mark_awake(&self.record.id, asleep).await?;
                // It may be fresh from a smaller template.
                powered.vm.resize_disk(self.record.disk).await?;
            }
            Ok::<_, Error>(powered.vm.resume().await?)
        };
        match going.await {
            Ok(()) => {
                if let Some(answers) = self.wait_for_guest(powered, Vec::new(), false).await {
                    self.start(answers).await;
                }
            }
            Err(error) => {
                powered.cut(&self.host).await;
                self.did_not_start(error, Vec::new()).await;
            }
        }
    }

    async fn bring_up(&mut self) -> Result<Powered> {
        if self.host.is_closing() {
            let hint = "connect again when it is back";
            return Err(Refusal::new(Code::Unavailable, "the service is stopping", hint).into());
        }
        let state = next(self.record.state, Event::Start)?;
        // 1. What it needs, before there is a process. A network that was kept
        //    for open connections is used again.
        let (memory, network) = match self.kept.take() {
            Some(kept) => {
                let admitted = admit_room(&self.host, &self.record)
                    .and_then(|()| self.host.ledger.admit_memory(&self.record.owner, self.record.memory));
                match admitted {
                    Ok(memory) => (memory, kept.network),
                    Err(error) => {
                        self.kept = Some(kept);
                        return Err(error.into());
                    }
                }
            }
            None => prepare(&self.host, &self.record).await?,
        };
        // 2. Intent, so that a crash leaves nothing unowned.
        self.record.runtime = Some(Runtime {
            pid: 0,
            started: 0,
            netns: network.name.clone(),
            driver: self.host.driver.name().to_owned(),
            since: Timestamp::now(),
            boot: Some(self.host.storage.boot().clone()),
        });
        if let Err(error) = self.become_state(state).await {
            self.record.runtime = None;
            network.link.hang_up().await;
            self.host.give_back(&network.name);
            return Err(error);
        }
        self.host.link(&self.record, &network);
        fault::point("wake.intent");
        // 3. The process, from memory if there is any that can be used.
        let powered = match self.power_up(memory, network).await {
            Ok(powered) => powered,
            Err((error, _, network)) => {
                self.host.give_back(&network.name);
                return Err(error);
            }
        };
        fault::point("wake.powered");
        // 4. Where to find it again; the next hostd would find it by its
        //    directory, so this is written down when it is up.
        if let Some(runtime) = &mut self.record.runtime {
            (runtime.pid, runtime.started) = (powered.vm.pid(), powered.vm.started());
        }
        self.publish();
        Ok(powered)
    }

    /// From memory, else from the disk. What could not be resumed is kept.
    async fn power_up(
        &mut self,
        memory: MemoryLease,
        network: Network,
    ) -> Result<Powered, (Error, MemoryLease, Network)> {
        let Some(id) = self.record.sleeps_in.clone() else {
            return power(&self.host, &self.record, memory, network, None).await;
        };
        let directory = self.host.storage.directory(&self.record.id);
        let generation = self.host.archive.get(&id);
        let only_disk = generation.as_ref().is_some_and(|generation| generation.state_size == 0);
        let (memory, network) = if only_disk || self.distrusted.as_ref() == Some(&id) {
            (memory, network)
        } else {
            match self.resume(memory, network).await {
                Ok(powered) => return Ok(powered),
                Err((error, memory, network)) => {
                    self.cannot_resume(&error);
                    (memory, network)
                }
            }
        };
        let laid_out = async {
            self.host.archive.thaw_disk(&id, directory, self.record.uid).await?;
            self.host.storage.mark_awake(&self.record.id, &id).await
        };
        if let Err(error) = laid_out.await {
            return Err((error, memory, network));
        }
        power(&self.host, &self.record, memory, network, None).await
    }

    async fn resume(
        &mut self,
        memory: MemoryLease,
        network: Network,
    ) -> Result<Powered, (Error, MemoryLease, Network)> {
        let driver = &self.host.driver;
        let generation = self.record.sleeps_in.as_ref().and_then(|id| self.host.archive.get(id));
        let Some(generation) = generation else {
            let error = match &self.record.sleeps_in {
                // Its manifest is there and cannot be used: that is the reason.
                Some(id) => self.host.archive.verify_whole(id).await.err(),
                None => None,
            };
            let error = error.unwrap_or_else(|| Error::Guest("its memory is missing".into()));
            return Err((error, memory, network));
        };
        if !driver.restores(&generation.driver, &generation.driver_version) {
            let made = format!("{} {}", generation.driver, generation.driver_version);
            let now = format!("{} {}", driver.name(), driver.version());
            return Err((
                Error::Guest(format!("its memory was saved by {made}, this is {now}")),
                memory,
                network,
            ));
        }
        resume(&self.host, &self.record, &generation, memory, network, fault::point).await
    }

    /// Loudly: in the log, and to whoever looks or connects.
    fn cannot_resume(&mut self, error: &Error) {
        let reason = printable(&error.chain());
        tracing::error!(machine = %self.record.id, reason, "cannot resume its memory; booting from its disk");
        let reason = format!("its memory could not be resumed, it booted from its disk: {reason}");
        self.record.failure = Some(Failure { reason, at: Timestamp::now() });
    }

    /// The long part of a start. Whoever wants the machine up joins; whoever
    /// wants it down or gone ends it. Returns those who wait if its memory
    /// turned out to be no good and it should be tried from its disk, or if
    /// its boot stood still and may be begun `anew`.
    async fn wait_for_guest(
        &mut self,
        powered: Powered,
        mut answers: Vec<Answer>,
        anew: bool,
    ) -> Option<Vec<Answer>> {
        let (host, record) = (self.host.clone(), self.record.clone());
        let boots = record.sleeps_in.is_none() || record.sleeps_in == self.distrusted;
        let anew = anew && boots;
        let limit = if anew { host.first_boot_limit() } else { host.boot_limit() };
        let begun = Instant::now();
        let greeted = {
            let greeting = greet(&host, &record, &powered, limit);
            tokio::pin!(greeting);
            loop {
                tokio::select! {
                    greeted = &mut greeting => break Some(greeted),
                    ask = self.asks.recv() => match ask {
                        Some(Ask::Start(answer)) if !self.rests_next() => answers.push(answer),
                        Some(end @ (Ask::Stop(_) | Ask::Restart(_) | Ask::Remove(_))) => {
                            self.deferred.push_back(end);
                            break None;
                        }
                        Some(later) => self.deferred.push_back(later),
                        None => break None,
                    },
                }
            }
        };
        match greeted {
            Some(Ok(control)) => {
                let up = self.went_up(powered, control).await.map_err(Refusal::from);
                answers.into_iter().for_each(|answer| reply(answer, up.clone().map_err(Error::from)));
            }
            Some(Err(error)) => {
                powered.cut(&self.host).await;
                if self.record.sleeps_in.is_some() && self.record.sleeps_in != self.distrusted {
                    self.cannot_resume(&error);
                    self.distrusted = self.record.sleeps_in.clone();
                    return Some(answers);
                }
                if anew && begun.elapsed() >= limit {
                    tracing::warn!(machine = %self.record.id, error = error.chain(), "its boot stands still; once more");
                    return Some(answers);
                }
                self.did_not_start(error, answers).await;
            }
            None => {
                powered.cut(&self.host).await;
                self.down(Event::Down).await;
                let hint = "someone stopped or removed it";
                let refusal = Refusal::new(Code::Conflict, "the machine did not come up", hint);
                answers.into_iter().for_each(|answer| reply(answer, Err(refusal.clone().into())));
            }
        }
        None
    }

    /// Somebody has asked for it to rest as soon as it is up. Whoever wants it up after
    /// that has to wait for both: told that it is, they would find it asleep.
    fn rests_next(&self) -> bool {
        self.deferred.iter().any(|ask| matches!(ask, Ask::Sleep(_) | Ask::Restore(..)))
    }

    pub async fn went_up(&mut self, powered: Powered, control: Control) -> Result<()> {
        fault::point("wake.greeted");
        let state = next(self.record.state, Event::Up)?;
        let before = self.record.clone();
        self.record.fresh = false;
        let slept_in = self.record.sleeps_in.take();
        if slept_in.is_some() {
            self.record.woke_from.clone_from(&slept_in);
        }
        (self.paused, self.record.held) = (None, None);
        let monitor = self.monitor(&powered, control);
        self.up = Some(Up { powered, monitor: Some(monitor), alarm: None });
        if slept_in.is_none() {
            // It runs on its own disk, which a crash would find whatever the record says.
            let _ = self.is_now(state).await;
        } else if let Err(error) = self.become_state(state).await {
            // While its record says that it sleeps, a crash would take back all that it
            // does from here on: it goes to sleep where it was before it does anything.
            let Machine { fresh, sleeps_in, woke_from, .. } = before;
            (self.record.fresh, self.record.sleeps_in, self.record.woke_from) = (fresh, sleeps_in, woke_from);
            if let Some(up) = self.up.take() {
                up.powered.cut(&self.host).await;
            }
            self.down(Event::Down).await;
            return Err(error);
        }
        let (host, id) = (self.host.clone(), self.record.id.clone());
        if let Some(generation) = &slept_in {
            host.archive.let_go(generation);
        }
        // To remove files takes a core for longer than a first command may wait.
        let watched = self.public.subscribe();
        tokio::spawn(async move {
            host.a_while().await;
            let synced = host.store.sync().await;
            let Some(generation) = slept_in else { return told(synced) };
            told(match synced {
                Ok(()) => {
                    let is_last = || {
                        let record = &watched.borrow().record;
                        record.sleeps_in.is_none() && record.woke_from.as_ref() == Some(&generation)
                    };
                    host.storage.unmark_earlier(&id, &generation, is_last).await
                }
                failed => failed,
            });
            host.archive.age_like(&generation).await;
        });
        Ok(())
    }

    pub fn monitor(&self, powered: &Powered, control: Control) -> Monitor {
        let watched = Watched {
            id: self.record.id.clone(),
            vm: powered.vm.clone(),
            link: powered.network.link.clone(),
            last_used: self.last_used.clone(),
        };
        Monitor::start(self.host.clone(), watched, control)
    }

    async fn did_not_start(&mut self, error: Error, answers: Vec<Answer>) {
        // A refusal changed nothing: no memory, no room. Everything else did.
        if self.record.state == State::Starting {
            tracing::warn!(machine = %self.record.id, error = error.chain(), "a machine did not start");
            self.broke(error.chain()).await;
        }
        let refusal = Refusal::from(error);
        answers.into_iter().for_each(|answer| reply(answer, Err(refusal.clone().into())));
    }
}

fn told(synced: Result<()>) {
    if let Err(error) = synced {
        tracing::error!(error = error.chain(), "cannot sync a record");
    }
}
