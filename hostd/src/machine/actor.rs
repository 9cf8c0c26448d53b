//! The task that owns a machine.
//!
//! It takes one ask at a time. Only the long wait for a booting guest is
//! shared: logins that arrive meanwhile join it, and a stop or removal cuts it
//! short. Every change of state goes through `berth_types::next`, is written
//! to the store, and only then published and acknowledged.

use super::{Answer, Ask, Handle, Public, pulse, start};
use crate::{
    error::{Error, Result},
    guest::{Control, printable},
    host::Host,
    machine::start::Powered,
    net::{Link, Network},
};
use berth_hypervisor::{Exit, Vm};
use berth_types::{Event, Failure, Machine, MachineName, Refusal, Runtime, State, next};
use jiff::Timestamp;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

/// How a machine's task begins.
pub enum Beginning {
    Down,
    /// A hypervisor outlived hostd.
    Adopted(Arc<dyn Vm>, Network),
}

struct Actor {
    host: Arc<Host>,
    record: Machine,
    public: watch::Sender<Public>,
    asks: mpsc::Receiver<Ask>,
    /// Asked while something longer was under way.
    deferred: VecDeque<Ask>,
    last_used: Arc<AtomicI64>,
    up: Option<Up>,
}

struct Up {
    powered: Powered,
    pulse: JoinHandle<String>,
}

impl Drop for Up {
    fn drop(&mut self) {
        self.pulse.abort();
    }
}

/// What ended a wait.
enum Happened {
    Asked(Option<Ask>),
    Exited(Exit),
    Lost(String),
}

pub fn spawn(host: Arc<Host>, record: Machine, beginning: Beginning) -> Handle {
    let (sender, asks) = mpsc::channel(64);
    let (public, watched) = watch::channel(Public { record: Arc::new(record.clone()), link: None });
    let last_used = Arc::new(AtomicI64::new(record.last_used.as_millisecond()));
    let handle =
        Handle { id: record.id.clone(), asks: sender, public: watched, last_used: last_used.clone() };
    let deferred = VecDeque::new();
    let actor = Actor { host, record, public, asks, deferred, last_used, up: None };
    tokio::spawn(actor.run(beginning));
    handle
}

impl Actor {
    async fn run(mut self, beginning: Beginning) {
        if let Beginning::Adopted(vm, network) = beginning {
            let memory = self.host.ledger.take_memory(&self.record.owner, self.record.memory);
            self.wait_for_guest(Powered { vm, network, _memory: memory }, Vec::new()).await;
        }
        loop {
            match self.wait().await {
                Happened::Asked(None) => return,
                Happened::Asked(Some(Ask::Remove(answer))) => {
                    let removed = self.remove().await;
                    let gone = removed.is_ok();
                    let _ = answer.send(removed.map_err(Refusal::from));
                    if gone {
                        return;
                    }
                }
                Happened::Asked(Some(ask)) => self.handle(ask).await,
                Happened::Exited(exit) => self.exited(exit).await,
                Happened::Lost(reason) => self.lost(reason).await,
            }
        }
    }

    async fn wait(&mut self) -> Happened {
        if let Some(ask) = self.deferred.pop_front() {
            return Happened::Asked(Some(ask));
        }
        let Some(up) = &mut self.up else { return Happened::Asked(self.asks.recv().await) };
        tokio::select! {
            ask = self.asks.recv() => Happened::Asked(ask),
            exit = up.powered.vm.wait() => Happened::Exited(exit),
            reason = &mut up.pulse => Happened::Lost(reason.unwrap_or_else(|error| error.to_string())),
        }
    }

    async fn handle(&mut self, ask: Ask) {
        match ask {
            Ask::Start(answer) if self.up.is_some() => reply(answer, Ok(())),
            Ask::Start(answer) => self.start(vec![answer]).await,
            Ask::Stop(answer) => {
                let stopped = self.stop().await;
                reply(answer, stopped);
            }
            Ask::Restart(answer) => match self.stop().await {
                Ok(()) => self.start(vec![answer]).await,
                Err(error) => reply(answer, Err(error)),
            },
            Ask::Rename(name, answer) => {
                let renamed = self.rename(name).await;
                reply(answer, renamed);
            }
            // Taken by `run`, which ends with it.
            Ask::Remove(answer) => self.deferred.push_front(Ask::Remove(answer)),
        }
    }

    // ---- up ----

    async fn start(&mut self, answers: Vec<Answer>) {
        match self.power().await {
            Ok(powered) => self.wait_for_guest(powered, answers).await,
            Err(error) => self.did_not_start(error, answers).await,
        }
    }

    async fn power(&mut self) -> Result<Powered> {
        if self.host.is_closing() {
            let hint = "connect again when it is back";
            return Err(Refusal::new(berth_types::Code::Unavailable, "the service is stopping", hint).into());
        }
        let state = next(self.record.state, Event::Start)?;
        // 1. What it needs, before there is a process.
        let (memory, network) = start::prepare(&self.host, &self.record).await?;
        // 2. Intent, so that a crash leaves nothing unowned.
        self.record.runtime = Some(Runtime {
            pid: 0,
            started: 0,
            netns: network.name.clone(),
            driver: self.host.driver.name().to_owned(),
            since: Timestamp::now(),
        });
        if let Err(error) = self.become_state(state).await {
            self.host.networks.release(&network.name);
            return Err(error);
        }
        // 3. The process.
        let powered = start::power(&self.host, &self.record, memory, network).await?;
        if let Some(runtime) = &mut self.record.runtime {
            (runtime.pid, runtime.started) = (powered.vm.pid(), powered.vm.started());
        }
        // 4. Where to find it again.
        if let Err(error) = self.persist().await {
            powered.cut(&self.host).await;
            return Err(error);
        }
        Ok(powered)
    }

    /// The long part of a start. Whoever wants the machine up joins; whoever
    /// wants it down or gone ends it.
    async fn wait_for_guest(&mut self, powered: Powered, mut answers: Vec<Answer>) {
        let (host, record) = (self.host.clone(), self.record.clone());
        let greeted = {
            let greeting = start::greet(&host, &record, &powered);
            tokio::pin!(greeting);
            loop {
                tokio::select! {
                    greeted = &mut greeting => break Some(greeted),
                    ask = self.asks.recv() => match ask {
                        Some(Ask::Start(answer)) => answers.push(answer),
                        Some(rename @ Ask::Rename(..)) => self.deferred.push_back(rename),
                        Some(end) => {
                            self.deferred.push_back(end);
                            break None;
                        }
                        None => break None,
                    },
                }
            }
        };
        match greeted {
            Some(Ok(control)) => {
                let up = self.went_up(powered, control).await;
                answers.into_iter().for_each(|answer| reply(answer, up.clone().map_err(Error::from)));
            }
            Some(Err(error)) => {
                powered.cut(&self.host).await;
                self.did_not_start(error, answers).await;
            }
            None => {
                powered.cut(&self.host).await;
                self.down(Event::Down).await;
                let hint = "someone stopped or removed it";
                let refusal = Refusal::new(berth_types::Code::Conflict, "the machine did not come up", hint);
                answers.into_iter().for_each(|answer| reply(answer, Err(refusal.clone().into())));
            }
        }
    }

    async fn went_up(&mut self, powered: Powered, control: Control) -> Result<(), Refusal> {
        self.record.fresh = false;
        let link = powered.network.link.clone();
        let pulse = pulse::watch(self.host.clone(), self.record.id.clone(), link, control);
        self.up = Some(Up { powered, pulse: tokio::spawn(pulse) });
        let state = next(self.record.state, Event::Up)?;
        self.become_state(state).await.map_err(Refusal::from)
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

    // ---- down ----

    async fn stop(&mut self) -> Result<()> {
        let state = next(self.record.state, Event::Stop)?;
        self.record.failure = None;
        self.become_state(state).await?;
        let Some(up) = self.up.take() else { return Ok(()) };
        up.pulse.abort();
        self.ask_to_shut_down(&up.powered).await;
        self.power_off(up).await;
        self.down(Event::Down).await;
        Ok(())
    }

    /// A clean shutdown if the guest is able to, within the configured time.
    async fn ask_to_shut_down(&self, powered: &Powered) {
        let limit = self.host.config.machine.stop_timeout.duration();
        let clean = timeout(limit, async {
            let mut control = Control::when_up(&powered.network.link).await?;
            control.shut_down().await?;
            powered.vm.wait().await;
            Ok::<_, crate::guest::GuestError>(())
        });
        if !matches!(clean.await, Ok(Ok(()))) {
            tracing::warn!(machine = %self.record.id, "did not shut down in time; its power is cut");
        }
    }

    async fn power_off(&self, mut up: Up) {
        up.pulse.abort();
        let kill = up.powered.vm.kill().await;
        if let Err(error) = kill {
            tracing::error!(machine = %self.record.id, %error, "cannot end a hypervisor");
        }
        self.host.networks.release(&up.powered.network.name);
        up.powered.network.taps = None;
    }

    async fn exited(&mut self, exit: Exit) {
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

    async fn lost(&mut self, reason: String) {
        if let Some(up) = self.up.take() {
            self.power_off(up).await;
        }
        self.broke(reason).await;
    }

    async fn broke(&mut self, reason: String) {
        let reason = match last_line(&self.host.storage.console(&self.record.id, 4096)) {
            Some(line) => format!("{}; its console ends: {line}", printable(&reason)),
            None => printable(&reason),
        };
        tracing::warn!(machine = %self.record.id, reason, "a machine failed");
        self.record.failure = Some(Failure { reason, at: Timestamp::now() });
        self.down(Event::Broke).await;
    }

    /// The process is gone; the record follows.
    async fn down(&mut self, event: Event) {
        self.record.runtime = None;
        let state = match next(self.record.state, event) {
            Ok(state) => state,
            Err(_) => return,
        };
        if let Err(error) = self.become_state(state).await {
            tracing::error!(machine = %self.record.id, error = error.chain(), "cannot write a record");
        }
    }

    async fn remove(&mut self) -> Result<()> {
        // 1. From here on a crash finishes the removal.
        let state = next(self.record.state, Event::Remove)?;
        self.become_state(state).await?;
        // 2. No process, no network.
        if let Some(up) = self.up.take() {
            self.power_off(up).await;
        }
        // 3. No files, no record.
        self.host.storage.remove(&self.record.id).await?;
        self.host.store.remove_machine(&self.record.id).await?;
        // 4. The name and the quota are free.
        let Machine { owner, name, id, disk, .. } = &self.record;
        self.host.fleet.forget(owner, name, id);
        self.host.ledger.forget_machine(owner, *disk);
        Ok(())
    }

    // ---- the record ----

    async fn rename(&mut self, name: MachineName) -> Result<()> {
        let Machine { owner, id, name: old, .. } = self.record.clone();
        self.host.fleet.reserve(&owner, &name, &id)?;
        self.record.name = name.clone();
        if let Err(error) = self.persist().await {
            self.record.name = old;
            self.host.fleet.release(&owner, &name, &id);
            return Err(error);
        }
        self.host.fleet.release(&owner, &old, &id);
        if let Some(up) = &self.up {
            tokio::spawn(tell_name(up.powered.network.link.clone(), name));
        }
        Ok(())
    }

    async fn become_state(&mut self, state: State) -> Result<()> {
        let before = std::mem::replace(&mut self.record.state, state);
        let persisted = self.persist().await;
        if persisted.is_err() {
            self.record.state = before;
        }
        persisted
    }

    /// Written, then mirrored, then published.
    async fn persist(&mut self) -> Result<()> {
        if let Ok(used) = Timestamp::from_millisecond(self.last_used.load(Ordering::Relaxed)) {
            self.record.last_used = used;
        }
        self.host.store.put_machine(&self.record).await?;
        if let Err(error) = self.host.storage.mirror(&self.record).await {
            tracing::warn!(machine = %self.record.id, error = error.chain(), "cannot mirror a record");
        }
        let link = self.up.as_ref().map(|up| up.powered.network.link.clone());
        let _ = self.public.send(Public { record: Arc::new(self.record.clone()), link });
        Ok(())
    }
}

/// The guest's own name follows a rename; if it cannot now, the next start does it.
async fn tell_name(link: Link, name: MachineName) {
    let limit = Duration::from_secs(10);
    let told = timeout(limit, async {
        let mut control = Control::when_up(&link).await?;
        control.repair(name.as_str(), false, limit).await
    });
    if !matches!(told.await, Ok(Ok(()))) {
        tracing::warn!(%name, "a guest was not told its new name");
    }
}

fn reply(answer: Answer, result: Result<()>) {
    // Whoever asked may have hung up meanwhile.
    let _ = answer.send(result.map_err(Refusal::from));
}

fn last_line(console: &str) -> Option<String> {
    console.lines().rev().map(printable).find(|line| !line.trim().is_empty())
}
