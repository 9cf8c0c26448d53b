//! Carrying out what hostd says.

use crate::{
    bridge::{
        host::{Host, Shared},
        listen,
        machine::Machine,
        report::Reporter,
        rules::Rules,
    },
    channel::{ChannelError, Receiver},
    control::{Command, Event, LISTENERS, Link, Listeners, Order},
};
use berth_types::MachineId;
use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

/// How often hostd hears that bytes moved.
const PULSE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Served {
    host: Option<Arc<Host>>,
    machines: HashMap<MachineId, Linked>,
}

/// Dropping it ends the listeners, and the connections once they notice.
struct Linked {
    machine: Arc<Machine>,
    rules: watch::Sender<Arc<Rules>>,
    _listeners: JoinSet<()>,
}

pub async fn obey(mut receiver: Receiver, reporter: Reporter) -> Result<(), ChannelError> {
    reporter.say(Event::Ready).await;
    let (commands, mut incoming) = tokio::sync::mpsc::channel(16);
    // Reads on its own, because half a message must not be lost to a `select`.
    let reading = tokio::spawn(async move {
        loop {
            let command = receiver.receive::<Command>().await?;
            if commands.send(command).await.is_err() {
                return Ok(());
            }
        }
    });
    let mut served = Served::default();
    let mut pulse = tokio::time::interval(PULSE);
    pulse.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            command = incoming.recv() => match command {
                Some((command, descriptors)) => {
                    let error = served.obey(command.order, descriptors, &reporter).err();
                    reporter.say(Event::Done { serial: command.serial, error }).await;
                }
                None => return reading.await.unwrap_or(Ok(())),
            },
            _ = pulse.tick() => served.pulse(&reporter).await,
        }
    }
}

impl Served {
    fn obey(&mut self, order: Order, descriptors: Vec<OwnedFd>, reporter: &Reporter) -> Result<(), String> {
        match order {
            Order::Configure(settings) => {
                let shared = Shared::new(*settings).map_err(|error| error.to_string())?;
                match &self.host {
                    Some(host) => host.configure(shared),
                    None => self.host = Some(Arc::new(Host::new(shared, reporter.clone()))),
                }
                Ok(())
            }
            Order::Link(link) => self.link(*link, descriptors),
            Order::Update { machine, terms } => {
                let linked = self.machines.get(&machine).ok_or("no such machine is linked")?;
                linked.rules.send_replace(Arc::new(Rules::new(*terms)));
                Ok(())
            }
            Order::Unlink { machine } => {
                self.machines.remove(&machine);
                self.count();
                Ok(())
            }
        }
    }

    fn link(&mut self, link: Link, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let host = self.host.clone().ok_or("not configured yet")?;
        let descriptors: [OwnedFd; LISTENERS] =
            descriptors.try_into().map_err(|_| format!("a link takes {LISTENERS} descriptors"))?;
        let Link { machine: id, gateway, network, terms } = link;
        // The old one's listeners end before the same sockets are served again.
        self.machines.remove(&id);
        let (rules, watched) = watch::channel(Arc::new(Rules::new(terms)));
        let machine = Arc::new(Machine::new(id.clone(), (gateway, network), host, watched));
        let listeners = listen::start(&machine, Listeners::from_array(descriptors))
            .map_err(|error| format!("cannot use a listener: {error}"))?;
        self.machines.insert(id, Linked { machine, rules, _listeners: listeners });
        self.count();
        Ok(())
    }

    fn count(&self) {
        if let Some(host) = &self.host {
            host.count_machines(self.machines.len());
        }
    }

    async fn pulse(&self, reporter: &Reporter) {
        for linked in self.machines.values() {
            let bytes = linked.machine.moved.swap(0, Ordering::Relaxed);
            if bytes > 0 {
                reporter.say(Event::Moved { machine: linked.machine.id.clone(), bytes }).await;
            }
        }
    }
}
