//! A machine that was booted once for all cases of a driver, and saved.

use super::{machine::Machine, subject::Subject};
use anyhow::{Context, Result, anyhow};
use berth_hypervisor::Origin;
use std::{
    path::Path,
    sync::{Arc, OnceLock},
    time::Instant,
};

#[derive(Clone, Default)]
pub struct Template(Arc<OnceLock<Result<Made, String>>>);

struct Made {
    /// Removes its files when the last case has gone.
    machine: Machine,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").finish_non_exhaustive()
    }
}

impl Template {
    /// Its directory. Whoever comes first boots; the others wait for it.
    pub fn of(&self, subject: &Subject) -> Result<&Path> {
        // On a thread of its own: the caller may be a runtime's.
        let make = || {
            std::thread::scope(|scope| {
                let made = scope.spawn(|| make(subject)).join();
                made.unwrap_or_else(|_| Err(anyhow!("it panicked")))
            })
        };
        match self.0.get_or_init(|| make().map_err(|error| format!("{error:#}"))) {
            Ok(made) => Ok(&made.machine.directory),
            Err(error) => Err(anyhow!("no machine could be booted: {error}")),
        }
    }
}

fn make(subject: &Subject) -> Result<Made> {
    // A template holds its subject, so this one has a template of its own that
    // is never made.
    let machine = Machine::new(&subject.alone())?;
    crate::block_on(async {
        let begun = Instant::now();
        let running = machine.start(Origin::Boot).await?;
        crate::timing(subject, "start and boot", begun);
        running.guest.as_ref().context("needs a guest")?.run("sync")?;
        running.vm.pause().await?;
        running.vm.save().await?;
        running.vm.kill().await?;
        Ok(())
    })?;
    Ok(Made { machine })
}
