//! The index of machines: by id, and per user by name.

use crate::machine::Handle;
use berth_types::{Code, MachineId, MachineName, Refusal, UserId};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{PoisonError, RwLock},
};

#[derive(Debug, Default)]
pub struct Fleet(RwLock<Index>);

#[derive(Debug, Default)]
struct Index {
    machines: HashMap<MachineId, Handle>,
    names: HashMap<UserId, BTreeMap<MachineName, MachineId>>,
}

impl Fleet {
    fn index(&self) -> std::sync::RwLockReadGuard<'_, Index> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> std::sync::RwLockWriteGuard<'_, Index> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a name for a machine that is being made. Until [`Fleet::add`] the
    /// name is taken and the machine not yet there.
    pub fn reserve(&self, owner: &UserId, name: &MachineName, id: &MachineId) -> Result<(), Refusal> {
        let mut index = self.index_mut();
        let names = index.names.entry(owner.clone()).or_default();
        if names.contains_key(name) {
            let message = format!("you already have a machine '{name}'");
            return Err(Refusal::new(
                Code::Conflict,
                message,
                format!("choose another name, or 'rm {name}' first"),
            ));
        }
        names.insert(name.clone(), id.clone());
        Ok(())
    }

    pub fn add(&self, owner: &UserId, name: &MachineName, handle: Handle) {
        let mut index = self.index_mut();
        index.names.entry(owner.clone()).or_default().insert(name.clone(), handle.id().clone());
        index.machines.insert(handle.id().clone(), handle);
    }

    /// Gives a name free again, if it is still that machine's.
    pub fn release(&self, owner: &UserId, name: &MachineName, id: &MachineId) {
        if let Some(names) = self.index_mut().names.get_mut(owner)
            && names.get(name) == Some(id)
        {
            names.remove(name);
        }
    }

    pub fn forget(&self, owner: &UserId, name: &MachineName, id: &MachineId) {
        self.release(owner, name, id);
        self.index_mut().machines.remove(id);
    }

    /// One of the user's own machines, by name. Somebody else's is not found,
    /// in the same words as one that never was.
    pub fn find(&self, owner: &UserId, name: &MachineName) -> Result<Handle, Refusal> {
        self.get(owner, name).ok_or_else(|| {
            let message = format!("you have no machine '{name}'");
            Refusal::new(
                Code::NotFound,
                message,
                format!("see yours with 'ls', or make it with 'new {name}'"),
            )
        })
    }

    pub fn get(&self, owner: &UserId, name: &MachineName) -> Option<Handle> {
        let index = self.index();
        index.machines.get(index.names.get(owner)?.get(name)?).cloned()
    }

    pub fn with_id(&self, id: &MachineId) -> Option<Handle> {
        self.index().machines.get(id).cloned()
    }

    /// Is that name taken, if only by a machine in the making?
    pub fn is_taken(&self, owner: &UserId, name: &MachineName) -> bool {
        self.index().names.get(owner).is_some_and(|names| names.contains_key(name))
    }

    pub fn of(&self, owner: &UserId) -> Vec<Handle> {
        let index = self.index();
        let names = index.names.get(owner);
        names.into_iter().flatten().filter_map(|(_, id)| index.machines.get(id).cloned()).collect()
    }

    pub fn names(&self, owner: &UserId) -> Vec<MachineName> {
        self.index().names.get(owner).into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }

    pub fn knows(&self, id: &MachineId) -> bool {
        self.index().machines.contains_key(id)
    }

    pub fn all(&self) -> Vec<Handle> {
        self.index().machines.values().cloned().collect()
    }
}
