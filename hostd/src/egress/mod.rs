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
mod links;
mod policies;
mod start;
mod terms;

pub use authority::Authority;
pub use links::Links;
pub use policies::{Policies, Scope};
pub use start::bridge;
pub use terms::{equipment, policy, summary};

use crate::{host::Host, net::Network};
use berth_types::{Machine, MachineId, State, UserId};
use std::sync::Arc;
use terms::terms;

impl Host {
    /// Serves a machine on its network's sockets.
    pub fn link(&self, machine: &Machine, network: &Network) {
        self.links.link(terms(self, machine), machine, network);
    }

    /// Gives a network back, and with it whatever the bridge served on it.
    pub fn give_back(&self, network: &str) {
        self.links.unlink(network);
        self.networks.release(network);
    }

    /// Tells the bridge what has changed for some of a user's machines, and
    /// returns when it goes by that; then tells those that run.
    pub async fn apply(self: &Arc<Self>, owner: &UserId, concerned: impl Fn(&Machine) -> bool) {
        let concerned: Vec<_> =
            self.fleet.of(owner).into_iter().filter(|handle| concerned(&handle.record())).collect();
        for handle in &concerned {
            self.links.update(handle.id(), terms(self, &handle.record())).await;
        }
        for handle in concerned {
            if handle.record().state == State::Running
                && let Some(link) = handle.link()
            {
                let (record, host) = (handle.record(), self.clone());
                tokio::spawn(
                    async move { crate::guest::equip_again(&link, equipment(&host, &record)).await },
                );
            }
        }
    }

    /// Bytes that the bridge has moved for a machine, ever.
    pub fn proxied(&self, machine: &MachineId) -> u64 {
        self.links.moved(machine)
    }
}

pub use events::attend;
