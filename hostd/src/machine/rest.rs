//! Resting: paused after a short idleness, asleep after a longer one.

use super::{
    Answer,
    actor::{Actor, Kept, Up, reply},
    power::{Powered, greet},
    still::{For, Still},
};
use crate::{
    archive,
    error::{Error, Result, pool_full},
    fault,
    guest::Control,
    idle::{self, Rest},
    net::Network,
    storage::Way,
};
use berth_types::{Event, Generation, GenerationId, State, Why, next};
use jiff::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// How often a sleeping machine's connections are counted.
const COUNT: Duration = Duration::from_secs(60);
/// How soon a write that has failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

impl Actor {
    // ---- what is due when ----

    /// The next moment at which something has to be decided without news.
    pub fn deadline(&self) -> Option<Instant> {
        let record = &self.record;
        let clock = [record.expires, record.schedule.map(|schedule| schedule.at)];
        let clock = clock.into_iter().flatten().map(from_now);
        let paused = self.paused.filter(|_| record.held.is_none()).zip(self.policy().sleep);
        let awake = record.keepalive_until.map(from_now);
        let paused =
            paused.map(|(since, sleep)| awake.into_iter().fold(since + sleep.duration(), Instant::max));
        let count = self.kept.as_ref().map(|_| Instant::now() + COUNT);
        let again = self.unwritten.then(|| Instant::now() + AGAIN);
        clock.chain(paused).chain(count).chain(again).min()
    }

    /// Something may be due. True when the machine is gone.
    pub async fn due(&mut self) -> bool {
        let now = Timestamp::now();
        if self.record.expires.is_some_and(|expires| expires <= now) {
            tracing::info!(machine = %self.record.id, "its time is over");
            match self.remove().await {
                Ok(()) => return true,
                Err(error) => {
                    tracing::error!(machine = %self.record.id, error = error.chain(), "cannot remove it");
                    // Not again at once.
                    self.record.expires = now.checked_add(jiff::SignedDuration::from_secs(60)).ok();
                }
            }
        }
        if let Some(schedule) = self.record.schedule.filter(|schedule| schedule.at <= now) {
            tracing::info!(machine = %self.record.id, "woken by its schedule");
            self.record.schedule = schedule.after(now);
            let _ = self.persist().await;
            if self.record.state != State::Running {
                self.start(Vec::new()).await;
            }
        }
        if self.unwritten && self.persist().await.is_ok() {
            tracing::info!(machine = %self.record.id, "its record is written again");
        }
        self.rest(now).await;
        self.let_go_of_network().await;
        false
    }

    fn policy(&self) -> berth_types::IdlePolicy {
        self.record.idle.unwrap_or(self.host.config.idle.policy())
    }

    async fn rest(&mut self, now: Timestamp) {
        let awake = self.record.keepalive_until.is_some_and(|until| until > now);
        let rest = match (self.record.state, &self.up) {
            (State::Running, Some(up)) => {
                let activity = up.monitor.as_ref().map(|monitor| monitor.activity().last());
                activity.map_or(Rest::Stay, |activity| idle::decide(self.policy(), &activity, awake))
            }
            (State::Paused, Some(_)) if !awake && self.record.held.is_none() => {
                let idle = self.paused.map_or(Duration::ZERO, |since| since.elapsed());
                if self.policy().sleep.is_some_and(|sleep| idle >= sleep.duration()) {
                    Rest::Sleep
                } else {
                    Rest::Stay
                }
            }
            _ => Rest::Stay,
        };
        let result = match rest {
            Rest::Stay => Ok(()),
            Rest::Pause => self.pause().await,
            Rest::Sleep => self.suspend(Why::Sleep).await,
        };
        if let Err(error) = result {
            tracing::warn!(machine = %self.record.id, error = error.chain(), "cannot rest");
        }
    }

    // ---- pause ----

    async fn pause(&mut self) -> Result<()> {
        let state = next(self.record.state, Event::Pause)?;
        let idle_for = self.idle_for();
        let still = self.quiesce(For::Sleep).await?;
        if let Some(up) = &mut self.up {
            up.monitor = None;
            drop(still);
            up.alarm = up.powered.network.link.alarm().await.ok();
        }
        self.paused = Instant::now().checked_sub(idle_for);
        // The kernel writes its memory out in its own time, and from then on takes
        // it back when it needs it. Written out here, every page would have to be
        // made writable again on the first command.
        if let Err(error) = self.become_state(state).await {
            // What counts as running must run: it is served without being asked to wake.
            self.record.state = state;
            if let Err(error) = self.unpause(&mut Vec::new()).await {
                self.broke(error.chain()).await;
            }
            return Err(error);
        }
        Ok(())
    }

    /// At once, whether the guest agrees or not: what it writes next may have no
    /// place. Nobody who knocks wakes it.
    pub async fn hold(&mut self) -> Result<()> {
        let Some(up) = self.up.as_mut().filter(|_| self.record.state == State::Running) else {
            return Ok(());
        };
        let state = next(self.record.state, Event::Pause)?;
        up.powered.vm.pause().await?;
        up.monitor = None;
        (self.record.held, self.paused) = (Some(Timestamp::now()), Some(Instant::now()));
        if let Err(error) = self.become_state(state).await {
            // Full everywhere. It stands still all the same.
            tracing::error!(machine = %self.record.id, error = error.chain(), "cannot write down that it is held");
            self.record.state = state;
            self.publish();
        }
        Ok(())
    }

    /// Lets it run again. Those who wait for that are told if it does.
    pub async fn unpause(&mut self, waiting: &mut Vec<Answer>) -> Result<()> {
        let state = next(self.record.state, Event::Start)?;
        let Some(mut up) = self.up.take() else { return Err(Error::Guest("it has no process".into())) };
        up.alarm = None;
        self.record.state = state;
        let going = async {
            up.powered.vm.resume().await?;
            greet(&self.host, &self.record, &up.powered, self.host.boot_limit()).await
        };
        match going.await {
            Ok(control) => {
                self.ran_on(up.powered, control, waiting).await;
                Ok(())
            }
            Err(error) => {
                up.powered.cut(&self.host).await;
                Err(error)
            }
        }
    }

    /// It runs again, and whoever waits is told before that is written down: a
    /// record that still says `paused` has a process, and whoever finds that has
    /// it run.
    async fn ran_on(&mut self, powered: Powered, control: Control, waiting: &mut Vec<Answer>) {
        (self.record.state, self.record.held, self.paused) = (State::Running, None, None);
        let monitor = self.monitor(&powered, control);
        self.up = Some(Up { powered, monitor: Some(monitor), alarm: None });
        self.publish();
        waiting.drain(..).for_each(|answer| reply(answer, Ok(())));
        if let Err(error) = self.persist().await {
            tracing::error!(machine = %self.record.id, error = error.chain(), "cannot write down that it runs");
        }
        self.record_event(State::Running.to_string(), String::new()).await;
    }

    fn idle_for(&self) -> Duration {
        let activity = self.up.as_ref().and_then(|up| up.monitor.as_ref()).map(|monitor| monitor.activity());
        activity.map_or(Duration::ZERO, |activity| Duration::from_millis(activity.last().idle_ms))
    }

    // ---- sleep ----

    /// Memory and devices to disk, and no process left.
    pub async fn suspend(&mut self, why: Why) -> Result<()> {
        if self.record.state == State::Asleep {
            return Ok(());
        }
        if self.record.hold().is_some() {
            return Err(pool_full().into());
        }
        let before = self.record.state;
        // 1. Intent.
        let state = next(before, Event::Suspend)?;
        self.become_state(state).await?;
        fault::point("sleep.intent");
        // 2. Everything stands still, and the devices are saved. Most of its memory is
        //    written out before, while it runs: who wakes it at once would wait for that.
        if why == Why::Sleep
            && let Err(error) = self.host.storage.presync(&self.record.id).await
        {
            tracing::debug!(machine = %self.record.id, error = error.chain(), "not written out ahead");
        }
        let still = match self.save(before == State::Paused).await {
            Ok(still) => still,
            Err(error) => {
                self.give_up_suspending().await;
                return Err(error);
            }
        };
        // 3. The process ends; what it had is in its files. They are not touched while it
        //    may still have them open.
        let Some(up) = &self.up else { return Err(Error::Guest("it has no process".into())) };
        if let Err(error) = up.powered.vm.kill().await {
            tracing::error!(machine = %self.record.id, %error, "cannot end a hypervisor");
            drop(still);
            self.give_up_suspending().await;
            return Err(error.into());
        }
        let Some(up) = self.up.take() else { return Err(Error::Guest("it has no process".into())) };
        let Powered { mut network, heard, .. } = up.powered;
        drop((up.monitor, still));
        fault::point("sleep.ended");
        // 4. The files become a generation.
        let manifest = archive::manifest(&self.record, why.clone(), self.host.driver.as_ref());
        let manifest = Generation { guest: heard.number(), ..manifest };
        let directory = self.host.storage.directory(&self.record.id);
        let generation = match self.host.archive.freeze(manifest, directory, Way::Move).await {
            Ok(generation) => generation,
            Err(error) => {
                self.host.give_back(&network.name);
                self.broke(format!("it could not be put to sleep: {}", error.chain())).await;
                return Err(error);
            }
        };
        self.host.archive.hold(&generation.id);
        fault::point("sleep.moved");
        // 5. The record follows. Open connections keep the network.
        self.record.sleeps_in = Some(generation.id.clone());
        self.paused = None;
        if network.taps.is_none() {
            network.taps = self.host.networks.taps(&network).await.ok();
        }
        self.keep(network).await;
        let state = next(self.record.state, Event::Slept)?;
        self.is_now(state).await?;
        // 6. Ready to wake, durable, and no more than policy keeps. In a restore that is
        //    later, for the disk has a wake to serve first.
        if why != Why::Restore {
            self.host.archive.prepare(&generation.id).await;
            self.settle(generation.id.clone());
        }
        Ok(())
    }

    /// Who comes back at once would share the cores with this, and needs none of it.
    fn settle(&self, generation: GenerationId) {
        let (host, machine) = (self.host.clone(), self.record.id.clone());
        let owner = self.record.owner.clone();
        tokio::spawn(async move {
            host.a_while().await;
            if host.archive.is_held(&generation) {
                host.archive.sync_later(&generation);
            }
            host.archive.age(&machine).await;
            crate::quota::prune(&host, &owner).await;
        });
    }

    async fn save(&mut self, quiet: bool) -> Result<Still> {
        let still = if quiet { Still::default() } else { self.quiesce(For::Sleep).await? };
        fault::point("sleep.frozen");
        let Some(up) = &self.up else { return Err(Error::Guest("it has no process".into())) };
        up.powered.vm.save().await?;
        fault::point("sleep.saved");
        Ok(still)
    }

    async fn give_up_suspending(&mut self) {
        self.host.storage.forget_state(&self.record.id);
        if self.up.as_ref().is_some_and(|up| up.monitor.is_none()) {
            // It was paused; it runs now, which is safe.
            self.record.state = State::Paused;
            if let Err(error) = self.unpause(&mut Vec::new()).await {
                self.broke(error.chain()).await;
            }
            return;
        }
        self.go_on(Still::default()).await;
        match next(self.record.state, Event::Up) {
            Ok(state) => {
                let _ = self.is_now(state).await;
            }
            Err(refusal) => tracing::error!(%refusal, "cannot give up suspending"),
        }
    }

    // ---- the network of a machine that sleeps ----

    /// Keeps a network for as long as somebody is connected to the guest.
    pub async fn keep(&mut self, network: Network) {
        let connected = network.link.connections().await.unwrap_or(0) > 0;
        let alarm = if connected { network.link.alarm().await.ok() } else { None };
        if connected && alarm.is_some() {
            self.record.runtime = Some(berth_types::Runtime {
                pid: 0,
                started: 0,
                netns: network.name.clone(),
                driver: self.host.driver.name().to_owned(),
                since: Timestamp::now(),
                boot: Some(self.host.storage.boot().clone()),
            });
            self.kept = Some(Kept { network, alarm });
        } else {
            self.host.give_back(&network.name);
            self.record.runtime = None;
        }
    }

    async fn let_go_of_network(&mut self) {
        if let Some(kept) = self.kept.take() {
            let before = kept.network.name.clone();
            self.keep(kept.network).await;
            if self.kept.is_none() {
                tracing::debug!(machine = %self.record.id, network = before, "nobody is connected any more");
                let _ = self.persist().await;
            }
        }
    }
}

fn from_now(at: Timestamp) -> Instant {
    let left = at.duration_since(Timestamp::now());
    Instant::now() + Duration::try_from(left).unwrap_or(Duration::ZERO)
}
