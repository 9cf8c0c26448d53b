//! Which machines the bridge serves, and the one task that tells it.
//!
//! Nobody waits for a link: a machine's start goes on while the bridge is told.
//! Orders are carried out in the order in which they were given, and what they
//! say is found out in the same step: of two changes at once, the order that goes
//! last knows both.

use crate::net::{Network, share};
use berth_egress::{
    Bridge,
    control::{Link, Terms},
};
use berth_guest_protocol::{ETH_HOST_ADDRESS, ETH_NETWORK, ETH_PREFIX};
use berth_types::{Machine, MachineId, egress::Ipv4Network};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{mpsc, oneshot};

#[derive(Debug)]
pub struct Links {
    orders: mpsc::UnboundedSender<Order>,
    linked: Mutex<HashMap<MachineId, Linked>>,
}

#[derive(Clone, Debug)]
pub struct Linked {
    network: String,
    moved: u64,
    /// For whoever tells its guest something.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
enum Order {
    Link(Box<Link>, crate::net::Doors),
    Update(MachineId, Box<Terms>, oneshot::Sender<()>),
    Unlink(MachineId),
}

impl Links {
    /// Without a bridge, as in flow tests, orders lead nowhere.
    pub fn new(bridge: Option<Bridge>) -> Self {
        let (orders, given) = mpsc::unbounded_channel();
        if let Some(bridge) = bridge {
            tokio::spawn(carry_out(bridge, given));
        }
        Self { orders, linked: Mutex::default() }
    }

    fn linked(&self) -> std::sync::MutexGuard<'_, HashMap<MachineId, Linked>> {
        self.linked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is served on this network already, because it slept with open
    /// connections, keeps them.
    pub fn link(&self, machine: &Machine, network: &Network, terms: impl FnOnce() -> Terms) {
        let Some(doors) = &network.doors else { return };
        let mut all = self.linked();
        if all.get(&machine.id).is_some_and(|linked| linked.network == network.name) {
            let (unheeded, _) = oneshot::channel();
            let _ = self.orders.send(Order::Update(machine.id.clone(), Box::new(terms()), unheeded));
            return;
        }
        let doors = match share(doors) {
            Ok(doors) => doors,
            Err(error) => {
                tracing::error!(machine = %machine.id, %error, "cannot serve its network; it reaches nothing");
                return;
            }
        };
        let network = network.name.clone();
        all.insert(machine.id.clone(), Linked { network, moved: 0, turn: Arc::default() });
        let link = Link {
            machine: machine.id.clone(),
            gateway: ETH_HOST_ADDRESS.into(),
            network: Ipv4Network::around(ETH_NETWORK.into(), ETH_PREFIX),
            terms: terms(),
        };
        let _ = self.orders.send(Order::Link(Box::new(link), doors));
    }

    /// Returns when the bridge goes by the new terms.
    pub async fn update(&self, machine: &MachineId, terms: impl FnOnce() -> Terms) {
        let (done, updated) = oneshot::channel();
        {
            let linked = self.linked();
            if !linked.contains_key(machine) {
                return;
            }
            let terms = terms();
            let _ = self.orders.send(Order::Update(machine.clone(), Box::new(terms), done));
        }
        // It fails where there is no bridge to be told.
        let _ = updated.await;
    }

    /// Whoever tells a machine's guest something waits for this.
    pub fn turn(&self, machine: &MachineId) -> Option<Arc<tokio::sync::Mutex<()>>> {
        self.linked().get(machine).map(|linked| linked.turn.clone())
    }

    /// Whichever machine was served on this network is not any more.
    pub fn unlink(&self, network: &str) {
        let mut linked = self.linked();
        let found = linked.iter().find(|(_, linked)| linked.network == network);
        if let Some(machine) = found.map(|(machine, _)| machine.clone()) {
            linked.remove(&machine);
            let _ = self.orders.send(Order::Unlink(machine));
        }
    }

    pub fn count(&self, machine: &MachineId, bytes: u64) {
        if let Some(linked) = self.linked().get_mut(machine) {
            linked.moved = linked.moved.wrapping_add(bytes);
        }
    }

    pub fn moved(&self, machine: &MachineId) -> u64 {
        self.linked().get(machine).map_or(0, |linked| linked.moved)
    }
}

async fn carry_out(bridge: Bridge, mut orders: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        let (told, done) = match order {
            Order::Link(link, doors) => (bridge.link(*link, doors).await, None),
            Order::Update(machine, terms, done) => (bridge.update(machine, *terms).await, Some(done)),
            Order::Unlink(machine) => (bridge.unlink(machine).await, None),
        };
        if let Err(error) = told {
            tracing::error!(%error, "the egress bridge was not told");
        }
        if let Some(done) = done {
            let _ = done.send(());
        }
    }
}
