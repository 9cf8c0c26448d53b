//! How long a saved state stays: while it is held, and while policy keeps it.

use super::Archive;
use crate::{error::Result, storage::blocking};
use berth_types::{Code, GenerationId, MachineId, Refusal, Why};

impl Archive {
    /// Perhaps no machine does any more; what none needs then goes.
    pub async fn release(&self, id: &GenerationId) {
        self.let_go(id);
        self.age_like(id).await;
    }

    /// The same, but nothing goes before its machine's are aged.
    pub fn let_go(&self, id: &GenerationId) {
        let mut index = self.index_mut();
        if let Some(count) = index.holds.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                index.holds.remove(id);
            }
        }
    }

    /// Lets go of what is outdated of the machine whose this is.
    pub async fn age_like(&self, id: &GenerationId) {
        if let Some(machine) = self.get(id).and_then(|generation| generation.machine.clone()) {
            self.age(&machine).await;
        }
    }

    /// Lets go of what policy keeps no longer.
    pub async fn age(&self, machine: &MachineId) {
        let mut automatic = 0;
        for generation in self.of(machine) {
            let outdated = match generation.why {
                Why::Sleep | Why::Restore => {
                    automatic += 1;
                    automatic > self.keep
                }
                Why::Fork => true,
                Why::Snapshot(_) | Why::Template { .. } => false,
            };
            if outdated {
                self.forget(&generation.id).await;
            }
        }
    }

    /// Everything of a machine that is gone, but what its children still sleep in.
    pub async fn forget_machine(&self, machine: &MachineId) {
        for generation in self.of(machine) {
            self.forget(&generation.id).await;
        }
    }

    /// What a crash left that no machine needs: captures for forks, and points in
    /// time of machines that are gone.
    pub async fn sweep(&self, exists: impl Fn(&MachineId) -> bool) {
        let all: Vec<_> = self.index().all.values().cloned().collect();
        for generation in all {
            let Some(machine) = &generation.machine else { continue };
            let orphan = generation.why == Why::Fork || !exists(machine);
            if orphan {
                self.forget(&generation.id).await;
            }
        }
    }

    pub async fn remove(&self, id: &GenerationId) -> Result<()> {
        if self.forget(id).await {
            return Ok(());
        }
        let hint = "wake it first, then try again";
        Err(Refusal::new(Code::Conflict, "a machine sleeps in that point in time", hint).into())
    }

    /// Removes what has no hold. False: it has one.
    async fn forget(&self, id: &GenerationId) -> bool {
        if !self.index_mut().take_out(id) {
            return false;
        }
        let (files, id) = (self.files.clone(), id.clone());
        if let Err(error) = blocking(move || files.remove(&id)).await {
            tracing::error!(error = error.chain(), "cannot remove a generation");
        }
        true
    }
}
