//! Jails that are made before a machine needs one: a launcher's start, its namespaces and
//! its root are the same for every machine, and take longer than a wake should wait.

use super::{Cell, Jail};
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// A machine and the next one; each takes about a megabyte.
const READY: usize = 2;
const LATER: Duration = Duration::from_secs(2);
/// The control group of one says no machine: hostd finds it by its user id.
const GROUP: &str = "ahead";

#[derive(Debug)]
pub(super) struct Ahead {
    jail: Jail,
    ready: Mutex<Vec<Cell>>,
}

impl Ahead {
    pub(super) fn new(jail: Jail) -> Arc<Self> {
        Arc::new(Self { jail, ready: Mutex::default() })
    }

    pub(super) fn take(&self) -> Option<Cell> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Has as many wait as there should be. Returns at once.
    pub(super) fn fill(self: &Arc<Self>) {
        let ahead = self.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn_blocking(move || {
            while ahead.is_short() {
                match ahead.make() {
                    Ok(cell) => ahead.ready.lock().unwrap_or_else(PoisonError::into_inner).push(cell),
                    Err(error) => return tracing::warn!(%error, "no jail is made ahead"),
                }
            }
        });
    }

    pub(super) fn fill_later(self: &Arc<Self>) {
        // Whoever drops the driver meanwhile wants no more of them.
        let ahead = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(LATER).await;
            ahead.upgrade().iter().for_each(Self::fill);
        });
    }

    fn is_short(&self) -> bool {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).len() < READY
    }

    fn make(&self) -> io::Result<Cell> {
        Cell::make(&self.jail, self.jail.groups.open(GROUP))
    }
}
