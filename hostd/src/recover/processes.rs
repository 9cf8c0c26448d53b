//! Which hypervisors run, and which machines they are of.
//!
//! A hypervisor that was taken over by its guest can change its working directory, but
//! neither its control group nor its user id. Both are asked first; the directory
//! counts only for a process that is in no control group of ours, as all are where the
//! host has no cgroup2.

use crate::error::{FileContext, Result};
use berth_hypervisor::cgroup::{Groups, Member, installation};
use berth_types::{Machine, MachineId, Runtime};
use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hypervisor {
    pub pid: i32,
    /// From /proc/PID/stat, against reused pids.
    pub started: u64,
}

/// Those that ran at one moment and have not been asked for yet.
#[derive(Debug, Default)]
pub struct Hypervisors(HashMap<MachineId, Vec<Hypervisor>>);

impl Hypervisors {
    /// `known`: the machines whose directories or records are there.
    pub fn find<'a>(machines: &Path, known: impl IntoIterator<Item = &'a Machine>) -> Result<Self> {
        // The user id 0 is no machine's: it is what one has that was not given one yet.
        let known = known.into_iter().filter(|machine| machine.uid > 0);
        let known: HashMap<u32, MachineId> = known.map(|machine| (machine.uid, machine.id.clone())).collect();
        let ids: HashSet<&MachineId> = known.values().collect();
        let ours = installation(machines);
        let mut found: HashMap<MachineId, Vec<Hypervisor>> = HashMap::new();
        let mut seen = HashSet::new();
        let mut add = |id: MachineId, pid: i32| {
            if let Some(started) = start_time(pid) {
                found.entry(id).or_default().push(Hypervisor { pid, started });
            }
        };
        for Member { pid, machine, installation } in Groups::find().members() {
            seen.insert(pid);
            let id = match (machine, installation) {
                (Some(id), Some(theirs)) if theirs == ours => Some(id),
                (Some(id), None) if ids.contains(&id) => Some(id),
                (Some(_), _) => None,
                // Started before it was known for which machine: its user id says that.
                (None, _) => user_id(pid).and_then(|uid| known.get(&uid).cloned()),
            };
            id.into_iter().for_each(|id| add(id, pid));
        }
        for entry in std::fs::read_dir("/proc").file("list", "/proc")?.flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let Ok(directory) = std::fs::read_link(entry.path().join("cwd")) else { continue };
            let id = directory.file_name().and_then(|name| name.to_str()?.parse::<MachineId>().ok());
            if directory.parent() == Some(machines)
                && !seen.contains(&pid)
                && let Some(id) = id
            {
                add(id, pid);
            }
        }
        found.values_mut().for_each(|of_one| of_one.sort_by_key(|one| one.started));
        Ok(Self(found))
    }

    /// A machine's: the one of its record first, then the eldest.
    pub fn take(&mut self, id: &MachineId, recorded: Option<&Runtime>) -> Vec<Hypervisor> {
        let mut found = self.0.remove(id).unwrap_or_default();
        let is_recorded =
            |one: &Hypervisor| recorded.is_some_and(|up| (up.pid, up.started) == (one.pid, one.started));
        found.sort_by_key(|one| !is_recorded(one));
        found
    }

    /// What is left: no machine has asked for these.
    pub fn rest(self) -> impl Iterator<Item = (MachineId, Hypervisor)> {
        self.0.into_iter().flat_map(|(id, found)| found.into_iter().map(move |one| (id.clone(), one)))
    }
}

/// The real user id, if the effective and the saved one are the same.
fn user_id(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut ids = ids.split_whitespace().map(|id| id.parse::<u32>().ok());
    let real = ids.next()??;
    ids.all(|id| id == Some(real)).then_some(real)
}

/// Field 22 of /proc/PID/stat, counted behind the name, which may contain anything.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}
