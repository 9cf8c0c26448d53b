//! When the pool runs short: whoever fills it stands still until there is room.
//!
//! Memory and disks are sparse and share blocks with the past, so a machine that
//! only runs can need a block, and one that finds none is not refused but ended
//! (SIGBUS). `host.pool_reserve` keeps new work out long before; this keeps what
//! runs already from using the reserve up. A machine that stands still has lost
//! nothing, its sessions are still open, and it goes on by itself.

use crate::{host::Host, machine::Handle};
use berth_types::{MachineId, State};
use std::{collections::HashMap, fs, sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::timeout};

/// How often to look.
const CALM: Duration = Duration::from_secs(1);
/// The same when there is less than twice the reserve.
const ALERT: Duration = Duration::from_millis(100);
/// How long one that is busy with something else is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// A machine that answers somebody writes as much, most of it to its own memory.
const FAIR: u64 = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Plenty,
    /// Nobody is held for it, and nobody is let go.
    Enough,
    /// Whoever writes most is held, one after the other.
    Little,
    /// Everybody is.
    Hardly,
}

impl Room {
    const fn of(free: u64, reserve: u64) -> Self {
        match free {
            free if free < reserve / 8 => Self::Hardly,
            free if free < reserve / 4 => Self::Little,
            free if free < reserve / 2 => Self::Enough,
            _ => Self::Plenty,
        }
    }
}

/// Runs as long as hostd does.
pub async fn watch(host: Arc<Host>) {
    let reserve = host.config.host.pool_reserve.bytes();
    let mut written = HashMap::new();
    let mut held = false;
    loop {
        let free = host.storage.space().map_or(u64::MAX, |space| space.free.bytes());
        match Room::of(free, reserve) {
            Room::Plenty => {
                written.clear();
                if std::mem::take(&mut held) {
                    tracing::info!("there is room in the pool again");
                    for handle in host.fleet.all() {
                        handle.release().await;
                    }
                }
            }
            Room::Enough => {
                busiest(&host, &mut written);
            }
            Room::Little => {
                if hold(busiest(&host, &mut written), free).await {
                    held = true;
                    // What the others wrote so far did no harm.
                    written.clear();
                }
            }
            Room::Hardly => held |= hold(running(&host), free).await,
        }
        let pace = if free < reserve.saturating_mul(2) { ALERT } else { CALM };
        tokio::time::sleep(pace).await;
    }
}

/// All of them at once, for one may be busy. True when there was any.
async fn hold(handles: impl IntoIterator<Item = Handle>, free: u64) -> bool {
    let mut holding = JoinSet::new();
    for handle in handles {
        tracing::error!(machine = %handle.id(), free_mib = free >> 20, "the pool is nearly full: it is held");
        holding.spawn(async move {
            if let Err(refusal) = handle.hold().await {
                tracing::error!(machine = %handle.id(), reason = refusal.message, "it cannot be held");
            }
        });
    }
    let any = !holding.is_empty();
    // Whoever is busy has the ask in its queue; the others fill the pool meanwhile.
    let _ = timeout(PATIENCE, holding.join_all()).await;
    any
}

fn running(host: &Host) -> Vec<Handle> {
    host.fleet.all().into_iter().filter(|handle| handle.record().state == State::Running).collect()
}

/// Who wrote most since room became scarce or another was held, if that is more than anybody needs.
fn busiest(host: &Host, before: &mut HashMap<MachineId, u64>) -> Option<Handle> {
    let since = running(host).into_iter().filter_map(|handle| {
        let now = written(&handle)?;
        let then = *before.entry(handle.id().clone()).or_insert(now);
        Some((now.saturating_sub(then), handle))
    });
    since.filter(|(growth, _)| *growth > FAIR).max_by_key(|(growth, _)| *growth).map(|(_, handle)| handle)
}

/// Bytes that its hypervisor has made dirty so far, in memory and on the disk.
fn written(handle: &Handle) -> Option<u64> {
    let pid = handle.record().runtime.as_ref()?.pid;
    dirtied(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?)
}

fn dirtied(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_a_matter_of_the_reserve() {
        assert_eq!(Room::of(600, 1000), Room::Plenty);
        assert_eq!(Room::of(400, 1000), Room::Enough);
        assert_eq!(Room::of(200, 1000), Room::Little);
        assert_eq!(Room::of(100, 1000), Room::Hardly);
        assert_eq!(Room::of(0, 0), Room::Plenty, "without a reserve nobody is held");
    }

    #[test]
    fn what_a_process_wrote() {
        assert_eq!(dirtied("rchar: 5\nwrite_bytes: 4096\ncancelled_write_bytes: 7\n"), Some(4096));
        assert_eq!(dirtied(""), None);
    }
}
