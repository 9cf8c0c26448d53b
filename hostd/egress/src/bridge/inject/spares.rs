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
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Shorter than servers wait: one that hangs up just then would cost a request.
const KEPT: Duration = Duration::from_secs(3);
const MOST: usize = 16;
/// How often it is looked whether their time is over.
const LOOK: Duration = Duration::from_secs(1);

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
pub struct Spares(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    spares: Vec<Spare>,
    /// Somebody looks after them, until there are none.
    tended: bool,
}

impl fmt::Debug for Spares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spares")
    }
}

impl Spares {
    fn fresh(&self) -> MutexGuard<'_, Kept> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.spares.retain(|spare| spare.since.elapsed() < KEPT && spare.upstream.is_idle());
        kept
    }

    pub fn take(&self, place: &Place, rules: &Arc<Rules>) -> Option<Upstream> {
        let spares = &mut self.fresh().spares;
        let fits = |spare: &Spare| spare.place == *place && Arc::ptr_eq(&spare.upstream.rules, rules);
        let at = spares.iter().position(fits)?;
        Some(spares.swap_remove(at).upstream)
    }
}

/// Keeps a connection for a moment, if something can still be sent on it.
pub fn keep(machine: &Arc<Machine>, place: Place, upstream: Upstream) {
    let mut kept = machine.spares.fresh();
    if kept.spares.len() >= MOST || !upstream.is_idle() || !Arc::ptr_eq(&upstream.rules, &machine.rules()) {
        return;
    }
    kept.spares.push(Spare { place, upstream, since: Instant::now() });
    if !kept.tended
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        kept.tended = true;
        runtime.spawn(tend(Arc::downgrade(machine)));
    }
}

/// Lets go of those whose time is over. One timer for all of a machine's: a guest may
/// connect thousands of times a second.
async fn tend(machine: Weak<Machine>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(machine) = machine.upgrade() else { return };
        let mut kept = machine.spares.fresh();
        if kept.spares.is_empty() {
            kept.tended = false;
            return;
        }
    }
}
