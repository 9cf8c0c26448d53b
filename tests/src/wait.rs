//! Waiting for a condition, with a bound and a name for what did not happen.

use anyhow::{Result, bail};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Between two looks at something that cannot be waited on.
const LOOK: Duration = Duration::from_millis(25);

/// Looks until there is an answer. `what` completes "waited in vain for …".
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if started.elapsed() > limit {
            bail!("waited {} s in vain for {what}", limit.as_secs());
        }
        thread::sleep(LOOK);
    }
}

/// The same for something that is only true or not yet.
pub fn eventually(what: &str, limit: Duration, mut look: impl FnMut() -> Result<bool>) -> Result<()> {
    until(what, limit, || Ok(look()?.then_some(())))
}
