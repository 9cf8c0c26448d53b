//! A machine's connections to servers that nobody uses just now.
//!
//! A guest that connects anew for each request would have both ends shake hands
//! twice for each. The second of these is spared, if the same machine comes back
//! to the same server by the same rules.

use super::session::Upstream;
use crate::bridge::{machine::Machine, rules::Rules, sni::Http};
use berth_types::egress::HostName;
use std::{
    fmt,
    net::SocketAddrV4,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Shorter than servers wait: one that hangs up just then would cost a request.
const KEPT: Duration = Duration::from_secs(3);
const MOST: usize = 16;

/// What has to be the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub name: HostName,
    pub to: SocketAddrV4,
    /// In the guest's order, for the server may choose by it.
    pub offer: Vec<Http>,
}

struct Spare {
    place: Place,
    upstream: Upstream,
    since: Instant,
}

#[derive(Default)]
pub struct Spares(Mutex<Vec<Spare>>);

impl fmt::Debug for Spares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spares")
    }
}

impl Spares {
    fn fresh(&self) -> MutexGuard<'_, Vec<Spare>> {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spares.retain(|spare| spare.since.elapsed() < KEPT && spare.upstream.is_idle());
        spares
    }

    pub fn take(&self, place: &Place, rules: &Arc<Rules>) -> Option<Upstream> {
        let mut spares = self.fresh();
        let fits = |spare: &Spare| spare.place == *place && Arc::ptr_eq(&spare.upstream.rules, rules);
        let at = spares.iter().position(fits)?;
        Some(spares.swap_remove(at).upstream)
    }
}

/// Keeps a connection for a moment, if something can still be sent on it.
pub fn keep(machine: &Arc<Machine>, place: Place, upstream: Upstream) {
    let mut spares = machine.spares.fresh();
    if spares.len() >= MOST || !upstream.is_idle() || !Arc::ptr_eq(&upstream.rules, &machine.rules()) {
        return;
    }
    spares.push(Spare { place, upstream, since: Instant::now() });
    drop(spares);
    let machine = Arc::downgrade(machine);
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            tokio::time::sleep(KEPT).await;
            if let Some(machine) = machine.upgrade() {
                drop(machine.spares.fresh());
            }
        });
    }
}
