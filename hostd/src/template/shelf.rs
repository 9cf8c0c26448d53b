//! Which templates are kept: those of the configured sizes for good, of all other sizes
//! the few that were used last, within a bound of bytes. Who asks for odd sizes one after
//! the other gets machines that boot, and fills neither the pool nor a queue.

use crate::{error::Result, host::Host};
use berth_types::{ByteSize, GenerationId};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

/// Templates of other sizes than the configured ones.
pub const OTHERS: usize = 4;
/// Sizes that wait for a template; who asks for more is told nothing and boots.
const WAITING: usize = 2;

/// Held by the host.
#[derive(Debug, Default)]
pub struct Shelf {
    /// Held while a template is made.
    pub turn: tokio::sync::Mutex<()>,
    waiting: AtomicUsize,
    used: Mutex<HashMap<GenerationId, Instant>>,
}

/// A place in the queue; given back when dropped.
pub struct Waiting(Arc<Host>);

impl Waiting {
    pub fn queue(host: &Arc<Host>) -> Option<Self> {
        let waiting = &host.templating.waiting;
        let more = |count| (count < WAITING).then_some(count + 1);
        waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self(host.clone()))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.templating.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shelf {
    fn used(&self) -> std::sync::MutexGuard<'_, HashMap<GenerationId, Instant>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when no size waits for its template.
    #[cfg(test)]
    pub async fn idle(&self) {
        while self.waiting.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// A machine is made from it.
    pub fn touch(&self, template: &GenerationId) {
        self.used().insert(template.clone(), Instant::now());
    }
}

/// Is this one of the sizes that the operator wants kept?
pub fn is_configured(host: &Host, image: &str, cpus: u32, memory: ByteSize) -> bool {
    let defaults = &host.config.machine;
    (image, cpus) == (defaults.image.as_str(), defaults.cpus) && host.config.idle.ready.contains(&memory)
}

/// Makes room for one more of another size. What is in use stays, and goes the next time.
pub async fn make_room(host: &Host, bytes: u64) -> Result<bool> {
    let most = host.config.idle.ready_others.bytes();
    if bytes > most {
        return Ok(false);
    }
    trim(host, OTHERS - 1, most - bytes).await
}

/// Removes those that were not used for longest until so many of so many bytes are left.
/// False if that many cannot go, for somebody sleeps in them.
pub async fn trim(host: &Host, most: usize, most_bytes: u64) -> Result<bool> {
    let mut others = host.archive.templates();
    others.retain(|one| !is_configured(host, &one.image, one.cpus, one.memory));
    {
        let mut used = host.templating.used();
        used.retain(|id, _| others.iter().any(|one| one.id == *id));
        // Those of before the start were used longer ago than any other.
        others.sort_by_key(|one| (used.get(&one.id).copied(), one.created));
    }
    let mut count = others.len();
    let mut bytes: u64 = others.iter().map(|one| one.memory.bytes()).sum();
    for one in others {
        if count <= most && bytes <= most_bytes {
            return Ok(true);
        }
        if host.archive.remove(&one.id).await.is_ok() {
            tracing::info!(memory = %one.memory, cpus = one.cpus, "removed the template of a size that others displaced");
            count -= 1;
            bytes = bytes.saturating_sub(one.memory.bytes());
        }
    }
    Ok(count <= most && bytes <= most_bytes)
}
