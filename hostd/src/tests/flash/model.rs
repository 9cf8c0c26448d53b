//! What was acknowledged, and what may or may not have happened yet.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What a user may find of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// What its disk may say; `None`: that there is no such machine.
    pub disk: Vec<Option<u64>>,
    /// Snapshots that were acknowledged, with what their disks say.
    pub snapshots: BTreeMap<String, u64>,
}

/// Everything that was ever expected of each machine, in order.
#[derive(Default)]
pub struct Model(Mutex<BTreeMap<String, Vec<Expected>>>);

/// A moment: how much of the order was past.
pub type Moment = BTreeMap<String, usize>;

impl Model {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Expected>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this is what may be found.
    pub fn expect(&self, machine: &str, change: impl FnOnce(&mut Expected)) {
        let mut all = self.all();
        let order = all.entry(machine.to_owned()).or_default();
        let absent = || Expected { disk: vec![None], ..Expected::default() };
        let mut next = order.last().cloned().unwrap_or_else(absent);
        change(&mut next);
        order.push(next);
    }

    pub fn now(&self) -> Moment {
        self.all().iter().map(|(name, order)| (name.clone(), order.len())).collect()
    }

    /// What may be found of each machine if the power failed between two moments: the disk
    /// as it might have been at any time in between, and each snapshot that was there at all
    /// of those times.
    pub fn between(&self, from: &Moment, to: &Moment) -> BTreeMap<String, Expected> {
        let all = self.all();
        let one = |(name, end): (&String, &usize)| {
            let order = all.get(name)?;
            let begin = from.get(name).copied().unwrap_or(0).saturating_sub(1);
            let times = order.get(begin..*end)?;
            let mut snapshots = times.first()?.snapshots.clone();
            snapshots.retain(|label, _| times.iter().all(|time| time.snapshots.contains_key(label)));
            let mut disk: Vec<_> = times.iter().flat_map(|time| time.disk.clone()).collect();
            if !from.contains_key(name) {
                disk.push(None);
            }
            Some((name.clone(), Expected { disk, snapshots }))
        };
        to.iter().filter_map(one).collect()
    }
}
