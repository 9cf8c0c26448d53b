//! The task that owns a machine.
//!
//! It takes one ask at a time. Only the long wait for a booting guest is
//! shared: logins that arrive meanwhile join it, and a stop or removal cuts it
//! short. Every change of state goes through `berth_types::next`, is written
//! to the store, and only then published and acknowledged; but for the end of a
//! pause, which nobody has to know of after a crash.

use super::{Answer, Ask, Handle, Policy, Public, capture::Restored, monitor::Monitor, power::Powered};
use crate::{
    error::{Error, Result},
    guest::{Control, Heard},
    host::Host,
    net::{Alarm, Link, Network},
    storage::Busy,
};
use berth_hypervisor::{Exit, Vm};
use berth_types::{AuditEvent, GenerationId, Machine, MachineName, Refusal, State};
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
    time::{Instant, sleep_until, timeout},
};

/// How a machine's task begins.
pub enum Beginning {
    /// Stopped, failed or asleep.
    Down,
    /// Asleep, and connections to it are still open.
    Called(Network),
    /// A hypervisor outlived hostd.
    Adopted(Arc<dyn Vm>, Network),
}

pub(super) struct Actor {
    pub host: Arc<Host>,
    pub record: Machine,
    pub public: watch::Sender<Public>,
    pub asks: mpsc::Receiver<Ask>,
    /// Asked while something longer was under way.
    pub deferred: VecDeque<Ask>,
    pub last_used: Arc<AtomicI64>,
    pub up: Option<Up>,
    /// A sleeping machine's network, for as long as somebody is connected to it.
    pub kept: Option<Kept>,
    /// Since when it has been paused.
    pub paused: Option<Instant>,
    /// Memory that was tried and did not come back to life.
    pub distrusted: Option<GenerationId>,
    /// What of its memory moves in every capture.
    pub busy: Busy,
    /// The store does not say what is so: a write has failed, and is tried again.
    pub unwritten: bool,
}

pub(super) struct Up {
    pub powered: Powered,
    /// Absent while it is paused.
    pub monitor: Option<Monitor>,
    /// Set while it is paused.
    pub alarm: Option<Alarm>,
}

pub(super) struct Kept {
    pub network: Network,
    pub alarm: Option<Alarm>,
}

/// What ended a wait.
enum Happened {
    Asked(Option<Ask>),
    Exited(Exit),
    Lost(String),
    /// The monitor has seen it again, or a time has come.
    Due,
    /// Somebody sends something to a machine that rests.
    Called,
}

pub fn spawn(host: Arc<Host>, record: Machine, beginning: Beginning) -> Handle {
    let (sender, asks) = mpsc::channel(64);
    let first = Public { record: Arc::new(record.clone()), link: None, activity: None };
    let (public, watched) = watch::channel(first);
    let last_used = Arc::new(AtomicI64::new(record.last_used.as_millisecond()));
    let handle =
        Handle { id: record.id.clone(), asks: sender, public: watched, last_used: last_used.clone() };
    if let Some(generation) = &record.sleeps_in {
        host.archive.hold(generation);
    }
    let actor = Actor {
        host,
        record,
        public,
        asks,
        deferred: VecDeque::new(),
        last_used,
        up: None,
        kept: None,
        paused: None,
        distrusted: None,
        busy: Busy::default(),
        unwritten: false,
    };
    tokio::spawn(actor.run(beginning));
    handle
}

impl Actor {
    async fn run(mut self, beginning: Beginning) {
        match beginning {
            Beginning::Down => {}
            Beginning::Called(network) => self.keep(network).await,
            Beginning::Adopted(vm, network) => {
                let memory = self.host.ledger.take_memory(&self.record.owner, self.record.memory);
                self.adopted(Powered { vm, network, heard: Heard::default(), _memory: memory }).await;
            }
        }
        loop {
            match self.wait().await {
                Happened::Asked(None) => return,
                Happened::Asked(Some(Ask::Remove(answer))) => {
                    let removed = self.remove().await;
                    let gone = removed.is_ok();
                    reply(answer, removed);
                    if gone {
                        return;
                    }
                }
                Happened::Asked(Some(ask)) => self.handle(ask).await,
                Happened::Exited(exit) => self.exited(exit).await,
                Happened::Lost(reason) => self.lost(reason).await,
                Happened::Called => self.start(Vec::new()).await,
                Happened::Due => {
                    if self.due().await {
                        return;
                    }
                }
            }
        }
    }

    async fn wait(&mut self) -> Happened {
        if let Some(ask) = self.deferred.pop_front() {
            return Happened::Asked(Some(ask));
        }
        let deadline = self.deadline();
        let due = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let alarm = match (&self.up, &self.kept) {
            (Some(up), _) => up.alarm.as_ref(),
            (None, kept) => kept.as_ref().and_then(|kept| kept.alarm.as_ref()),
        };
        let called = async {
            match alarm {
                Some(alarm) if alarm.rings().await.is_ok() => {}
                _ => std::future::pending().await,
            }
        };
        let vm = self.up.as_ref().map(|up| up.powered.vm.clone());
        let exited = async {
            match vm {
                Some(vm) => vm.wait().await,
                None => std::future::pending().await,
            }
        };
        let mut seen = self.up.as_ref().and_then(|up| up.monitor.as_ref()).map(Monitor::watch);
        let seen = async {
            match &mut seen {
                Some(seen) => seen.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ask = self.asks.recv() => Happened::Asked(ask),
            exit = exited => Happened::Exited(exit),
            seen = seen => match seen {
                Ok(()) => Happened::Due,
                Err(reason) => Happened::Lost(reason),
            },
            () = called => Happened::Called,
            () = due => Happened::Due,
        }
    }

    async fn handle(&mut self, ask: Ask) {
        match ask {
            Ask::Start(answer) if self.record.state == State::Running => reply(answer, Ok(())),
            Ask::Start(answer) => self.start(vec![answer]).await,
            Ask::Sleep(answer) => {
                let slept = self.suspend(berth_types::Why::Sleep).await;
                reply(answer, slept);
            }
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
            Ask::Capture(why, copies, answer) => {
                let captured = self.capture(why, copies).await;
                // Nobody waits for it any more: it is nobody's.
                if let Err(Ok(generation)) = answer.send(captured.map_err(Refusal::from)) {
                    self.host.archive.release(&generation.id).await;
                }
            }
            Ask::Restore(point, answer) => match self.restore(&point).await {
                Ok(Restored { wakes, aside }) => {
                    if wakes {
                        self.start(vec![answer]).await;
                    } else {
                        reply(answer, Ok(()));
                    }
                    if let Some(aside) = aside {
                        self.restored(aside);
                    }
                }
                Err(error) => reply(answer, Err(error)),
            },
            Ask::Policy(policy, answer) => {
                let set = self.set(policy).await;
                reply(answer, set);
            }
            Ask::Hold(answer) => {
                let held = self.hold().await;
                reply(answer, held);
            }
            Ask::Release if self.record.hold().is_some() => self.start(Vec::new()).await,
            Ask::Release => {}
            // Taken by `run`, which ends with it.
            Ask::Remove(answer) => self.deferred.push_front(Ask::Remove(answer)),
        }
    }

    async fn rename(&mut self, name: MachineName) -> Result<()> {
        let name = name.for_new_machine()?;
        let Machine { owner, id, name: old, .. } = self.record.clone();
        self.host.fleet.reserve(&owner, &name, &id)?;
        self.record.name = name.clone();
        if let Err(error) = self.persist_for_good().await {
            self.record.name = old;
            self.host.fleet.release(&owner, &name, &id);
            return Err(error);
        }
        self.host.fleet.release(&owner, &old, &id);
        if self.record.state == State::Running
            && let Some(up) = &self.up
        {
            // Here, not beside: what is told late would undo a later name.
            tell_name(&up.powered.network.link, &self.record).await;
        }
        Ok(())
    }

    async fn set(&mut self, policy: Policy) -> Result<()> {
        let before = self.record.clone();
        match policy {
            Policy::Keepalive(until) => self.record.keepalive_until = until,
            Policy::Idle(idle) => self.record.idle = idle,
            Policy::Schedule(schedule) => self.record.schedule = schedule,
            Policy::Egress(egress) => self.record.egress = egress.map(|egress| *egress),
        }
        if let Err(error) = self.persist_for_good().await {
            self.record = before;
            return Err(error);
        }
        Ok(())
    }

    async fn persist_for_good(&mut self) -> Result<()> {
        self.persist().await?;
        self.host.store.sync().await
    }

    /// If this fails, nothing is as if it had been asked for: the caller undoes what it did
    /// for it.
    pub async fn become_state(&mut self, state: State) -> Result<()> {
        let before = std::mem::replace(&mut self.record.state, state);
        if let Err(error) = self.persist().await {
            self.record.state = before;
            return Err(error);
        }
        self.tell_state(before).await;
        // The states that a wake passes through are made durable later: nothing is lost
        // with them.
        let passing = [State::Starting, State::Running, State::Paused, State::Suspending];
        if !passing.contains(&state)
            && let Err(error) = self.host.store.sync().await
        {
            tracing::error!(machine = %self.record.id, error = error.chain(), "cannot sync a record");
        }
        Ok(())
    }

    /// For what is so already, whatever the store can say: a record that cannot be written
    /// now is written as soon as that works.
    pub async fn is_now(&mut self, state: State) -> Result<()> {
        let before = std::mem::replace(&mut self.record.state, state);
        let written = self.persist().await;
        if let Err(error) = &written {
            tracing::error!(machine = %self.record.id, %state, error = error.chain(), "cannot write a record yet");
            self.publish();
        }
        self.tell_state(before).await;
        written
    }

    async fn tell_state(&self, before: State) {
        let state = self.record.state;
        if before != state {
            let failure = self.record.failure.as_ref().filter(|_| state == State::Failed);
            let detail = failure.map(|failure| failure.reason.clone()).unwrap_or_default();
            self.record_event(state.to_string(), detail).await;
        }
    }

    /// For the audit log.
    pub async fn record_event(&self, state: String, detail: String) {
        let Machine { owner, name, id, .. } = &self.record;
        let (user, machine, machine_id) = (owner.clone(), name.clone(), id.clone());
        self.host.audit.record(AuditEvent::Machine { user, machine, machine_id, state, detail }).await;
    }

    /// Written, then mirrored, then published.
    pub async fn persist(&mut self) -> Result<()> {
        if let Ok(used) = Timestamp::from_millisecond(self.last_used.load(Ordering::Relaxed)) {
            self.record.last_used = used;
        }
        // Until it is written the store may say either.
        self.unwritten = true;
        self.host.store.put_machine(&self.record).await?;
        self.unwritten = false;
        if let Err(error) = self.host.storage.mirror(&self.record).await {
            tracing::warn!(machine = %self.record.id, error = error.chain(), "cannot mirror a record");
        }
        self.publish();
        Ok(())
    }

    pub fn publish(&self) {
        let running = self.up.as_ref().filter(|_| self.record.state == State::Running);
        let _ = self.public.send(Public {
            record: Arc::new(self.record.clone()),
            link: running.map(|up| up.powered.network.link.clone()),
            activity: running.and_then(|up| up.monitor.as_ref()).map(Monitor::activity),
        });
    }
}

/// The guest's own name follows a rename; if it cannot now, the next start does it.
async fn tell_name(link: &Link, machine: &Machine) {
    let (limit, heard) = (Duration::from_secs(3), Heard::default());
    let told = timeout(limit, Control::when_repaired(link, machine, None, &heard, limit));
    if !matches!(told.await, Ok(Ok(_))) {
        tracing::warn!(name = %machine.name, "a guest was not told its new name");
    }
}

pub(super) fn reply<T>(answer: Answer<T>, result: Result<T, Error>) {
    // Whoever asked may have hung up meanwhile.
    let _ = answer.send(result.map_err(Refusal::from));
}
