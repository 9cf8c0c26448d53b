//! Writes that fail when a test wants them to.

use crate::error::{Error, Result};
use std::sync::{Mutex, PoisonError};

/// After how many writes one fails, and whether all do from then on.
#[derive(Debug, Default)]
pub struct Faults(Mutex<Plan>);

#[derive(Debug, Default)]
struct Plan {
    after: Option<usize>,
    lasting: bool,
    struck: bool,
}

impl Faults {
    /// The write after so many others fails; if it is `lasting`, so do all that follow.
    pub fn fail_after(&self, writes: usize, lasting: bool) {
        *self.plan() = Plan { after: Some(writes), lasting, struck: false };
    }

    /// No write fails any more. True if one has.
    pub fn end(&self) -> bool {
        std::mem::take(&mut *self.plan()).struck
    }

    pub fn has_struck(&self) -> bool {
        self.plan().struck
    }

    pub fn strike(&self, operation: &'static str) -> Result<()> {
        let mut plan = self.plan();
        match plan.after {
            None => return Ok(()),
            Some(0) => plan.after = plan.lasting.then_some(0),
            Some(left) => {
                plan.after = Some(left - 1);
                return Ok(());
            }
        }
        plan.struck = true;
        Err(Error::Io { operation, source: std::io::Error::other("a test has this write fail") })
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
