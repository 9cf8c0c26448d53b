//! The host's half of egress: who may reach what, on which sockets, and what the
//! bridge has decided.
//!
//! ```text
//!   verbs ──▶ policies, vault ──▶ terms ──▶ links ──▶ berth-bridge (its own process)
//!                                             ▲           │ decisions ──▶ audit
//!                  a machine's network ───────┘           │ bytes ──────▶ idle policy
//! ```
//!
//! A machine is linked when its network is taken and unlinked when it is given
//! back. What changes meanwhile reaches the bridge before the verb is answered.

mod authority;
mod events;
mod known;
mod links;
mod policies;
mod start;
mod terms;

pub use authority::Authority;
pub use events::attend;
pub use links::Links;
pub use policies::{Policies, Scope};
pub use start::{bridge, extra_roots};
pub use terms::{equipment, policy, summary};

use crate::{host::Host, net::Network};
use berth_types::{Machine, MachineId, UserId};
use std::{sync::Arc, time::Duration};
use terms::terms;
use tokio::task::JoinSet;

/// How long a verb waits for machines to be told.
const SOON: Duration = Duration::from_secs(3);

impl Host {
    /// Serves a machine on its network's sockets.
    pub fn link(&self, machine: &Machine, network: &Network) {
        self.links.link(machine, network, || terms(self, machine));
    }

    /// Gives a network back, and with it whatever the bridge served on it.
    pub fn give_back(&self, network: &str) {
        self.links.unlink(network);
        self.networks.release(network);
    }

    /// Tells the bridge what has changed for some of a user's machines, and
    /// returns when it goes by that.
    pub async fn apply(&self, owner: &UserId, concerned: impl Fn(&Machine) -> bool) {
        for handle in self.fleet.of(owner) {
            if concerned(&handle.record()) {
                self.links.update(handle.id(), || terms(self, &handle.record())).await;
            }
        }
    }

    /// Tells a user's machines that run of new placeholders. One that does not
    /// answer soon is not waited for: its next start tells it.
    pub async fn equip(self: &Arc<Self>, owner: &UserId) {
        let mut telling = JoinSet::new();
        for handle in self.fleet.of(owner) {
            if let (Some(link), Some(turn)) = (handle.link(), self.links.turn(handle.id())) {
                let host = self.clone();
                telling.spawn(async move {
                    // One after the other, so that what is told last is the latest.
                    let _turn = turn.lock().await;
                    crate::guest::equip_again(&link, || equipment(&host, &handle.record())).await;
                });
            }
        }
        let told = async { while telling.join_next().await.is_some() {} };
        let late = tokio::time::timeout(SOON, told).await.is_err();
        if late {
            // What is still under way goes on.
            telling.detach_all();
        }
    }

    /// Bytes that the bridge has moved for a machine, ever.
    pub fn proxied(&self, machine: &MachineId) -> u64 {
        self.links.moved(machine)
    }
}
