//! A machine: one task owns it, everyone else asks or watches.
//!
//! The task is `actor`; what it does is a file each: `up` brings it up from
//! disk or memory with a hypervisor from `power`, `still` has it stand still,
//! `rest` pauses it and puts it to sleep, `capture` freezes a point in time while
//! it runs and goes back to one, `down` ends it.

mod actor;
mod capture;
mod down;
mod monitor;
mod power;
mod rest;
mod still;
mod up;

pub use actor::{Beginning, spawn};
pub use power::{Powered, greet, lost, missing_image, power, prepare, resume};
pub use still::settled;

use crate::{egress, host::Host, net::Link};
use berth_api::{MachineView, NetworkView};
use berth_types::{
    Activity, Code, Generation, IdlePolicy, Machine, MachineId, MachineName, Point, Refusal, Schedule, State,
    Why, egress::EgressPolicy,
};
use jiff::Timestamp;
use monitor::ActivityReader;
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use tokio::sync::{mpsc, oneshot, watch};

pub type Answer<T = ()> = oneshot::Sender<Result<T, Refusal>>;

/// What others may ask of a machine's task.
#[derive(Debug)]
pub enum Ask {
    /// Have it up.
    Start(Answer),
    Sleep(Answer),
    Stop(Answer),
    Restart(Answer),
    Remove(Answer),
    Rename(MachineName, Answer),
    /// Freeze this moment, to make so many copies of it at once. The generation
    /// comes held; whoever asked releases it.
    Capture(Why, usize, Answer<Arc<Generation>>),
    Restore(Point, Answer),
    Policy(Policy, Answer),
    /// Stand still: there is no room for what it writes.
    Hold(Answer),
    /// There is room again.
    Release,
}

/// What a user may set for when a machine rests and wakes.
#[derive(Clone, Debug)]
pub enum Policy {
    Keepalive(Option<Timestamp>),
    Idle(Option<IdlePolicy>),
    Schedule(Option<Schedule>),
    Egress(Option<Box<EgressPolicy>>),
}

/// What the task publishes.
#[derive(Clone, Debug)]
pub struct Public {
    pub record: Arc<Machine>,
    /// The way to its guest while it is up.
    pub link: Option<Link>,
    /// What was seen of it last.
    pub activity: Option<ActivityReader>,
}

/// The way to a machine's task. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    id: MachineId,
    asks: mpsc::Sender<Ask>,
    public: watch::Receiver<Public>,
    /// Milliseconds since the epoch; kept here so that a login writes nothing.
    last_used: Arc<AtomicI64>,
}

impl Handle {
    pub fn id(&self) -> &MachineId {
        &self.id
    }

    pub fn record(&self) -> Arc<Machine> {
        self.public.borrow().record.clone()
    }

    /// The way in, if it is up now.
    pub fn link(&self) -> Option<Link> {
        self.public.borrow().link.clone()
    }

    /// What it does, as its guest says now, if it is up.
    pub async fn fresh_activity(&self) -> Option<Activity> {
        let reader = self.public.borrow().activity.clone();
        Some(reader?.fresh().await)
    }

    pub fn touch(&self) {
        self.last_used.store(Timestamp::now().as_millisecond(), Ordering::Relaxed);
    }

    pub async fn start(&self) -> Result<(), Refusal> {
        self.ask(Ask::Start).await
    }

    pub async fn sleep(&self) -> Result<(), Refusal> {
        self.ask(Ask::Sleep).await
    }

    pub async fn stop(&self) -> Result<(), Refusal> {
        self.ask(Ask::Stop).await
    }

    pub async fn restart(&self) -> Result<(), Refusal> {
        self.ask(Ask::Restart).await
    }

    pub async fn remove(&self) -> Result<(), Refusal> {
        self.ask(Ask::Remove).await
    }

    pub async fn rename(&self, name: MachineName) -> Result<(), Refusal> {
        self.ask(|answer| Ask::Rename(name, answer)).await
    }

    pub async fn capture(&self, why: Why, copies: usize) -> Result<Arc<Generation>, Refusal> {
        self.ask(|answer| Ask::Capture(why, copies, answer)).await
    }

    pub async fn restore(&self, point: Point) -> Result<(), Refusal> {
        self.ask(|answer| Ask::Restore(point, answer)).await
    }

    pub async fn set(&self, policy: Policy) -> Result<(), Refusal> {
        self.ask(|answer| Ask::Policy(policy, answer)).await
    }

    pub async fn hold(&self) -> Result<(), Refusal> {
        self.ask(Ask::Hold).await
    }

    pub async fn release(&self) {
        // If it is gone, nobody holds it.
        let _ = self.asks.send(Ask::Release).await;
    }

    async fn ask<T>(&self, ask: impl FnOnce(Answer<T>) -> Ask) -> Result<T, Refusal> {
        let gone = || Refusal::new(Code::NotFound, "the machine is gone", "see yours with 'ls'");
        let (answer, answered) = oneshot::channel();
        self.asks.send(ask(answer)).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// Returns when it has no process any more.
    pub async fn down(&self) {
        let mut public = self.public.clone();
        // An error means that its task ended, and with it the machine.
        let _ = public.wait_for(|public| !public.record.state.has_process()).await;
    }

    pub fn view(&self, host: &Host) -> MachineView {
        let record = self.record();
        let up = matches!(record.state, State::Running | State::Paused);
        let since = record.runtime.as_ref().filter(|_| up).map(|up| up.since);
        let up = since.map(|since| Timestamp::now().duration_since(since).as_millis());
        let used =
            Timestamp::from_millisecond(self.last_used.load(Ordering::Relaxed)).unwrap_or(record.last_used);
        MachineView {
            name: record.name.clone(),
            id: record.id.clone(),
            state: record.state,
            image: record.image.clone(),
            cpus: record.cpus,
            memory: record.memory,
            disk: record.disk,
            disk_used: None,
            pool_used: None,
            labels: record.labels.clone(),
            created: record.created,
            last_used: used,
            up_ms: up.and_then(|up| u64::try_from(up).ok()),
            failure: record.hold().or_else(|| record.failure.clone()),
            parent: record.parent.as_ref().map(|parent| parent.name.clone()),
            parent_id: record.parent.as_ref().map(|parent| parent.machine.clone()),
            expires: record.expires,
            keepalive_until: record.keepalive_until,
            wakes_at: record.schedule.map(|schedule| schedule.at),
            network: NetworkView {
                address: std::net::Ipv4Addr::from(berth_guest_protocol::ETH_GUEST_ADDRESS).to_string(),
                egress: egress::summary(&egress::policy(host, &record)),
            },
        }
    }
}
