//! Saved states in memory, and who needs them.

use berth_types::{Code, Generation, GenerationId, MachineId, Point, Refusal, Why};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

#[derive(Default)]
pub struct Index {
    pub all: HashMap<GenerationId, Arc<Generation>>,
    /// Oldest first.
    pub machines: HashMap<MachineId, BTreeMap<(jiff::Timestamp, GenerationId), Arc<Generation>>>,
    /// Machines that sleep in one, and children about to.
    pub holds: HashMap<GenerationId, u32>,
    /// Not on the disk below yet: whole only as long as the host is up.
    pub unsynced: HashSet<GenerationId>,
    /// Those that were not when the host went down: of their memory, any part may be missing.
    pub torn: HashSet<GenerationId>,
}

impl Index {
    pub fn hold(&mut self, id: &GenerationId) {
        *self.holds.entry(id.clone()).or_default() += 1;
    }

    /// Newest first.
    pub fn of(&self, machine: &MachineId) -> impl Iterator<Item = &Arc<Generation>> {
        self.machines.get(machine).into_iter().flat_map(|all| all.values().rev())
    }

    pub fn point(&self, machine: &MachineId, point: &Point) -> Result<Arc<Generation>, Refusal> {
        let mut all = self.of(machine);
        let found = match point {
            Point::Label(label) => all.find(|one| matches!(&one.why, Why::Snapshot(own) if own == label)),
            Point::Automatic(place) => {
                all.filter(|one| one.why.is_automatic()).nth((*place as usize).saturating_sub(1))
            }
        };
        found.cloned().ok_or_else(|| {
            Refusal::new(Code::NotFound, format!("there is no '{point}'"), "see them with 'snapshots NAME'")
        })
    }

    pub fn take_out(&mut self, id: &GenerationId) -> bool {
        if self.holds.contains_key(id) {
            return false;
        }
        self.unsynced.remove(id);
        if let Some(generation) = self.all.remove(id)
            && let Some(machine) = &generation.machine
            && let Some(all) = self.machines.get_mut(machine)
        {
            all.remove(&(generation.created, id.clone()));
        }
        true
    }
}
