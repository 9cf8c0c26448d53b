//! A control group for every hypervisor, so that one machine's threads cannot
//! take more than the machine was given. Best effort: a host without cgroup2,
//! or whose controllers are elsewhere, runs machines all the same, and their
//! vCPUs and memory are then bounded by the hypervisor alone.

use berth_types::{ByteSize, MachineId};
use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

/// Ours, beside what a service manager keeps there.
const NAME: &str = "berth";
const CONTROLLERS: &[&str] = &["cpu", "memory", "pids"];
/// Microseconds over which a machine's share of the CPUs is measured.
const PERIOD: u64 = 100_000;
/// Beside the guest's memory: the hypervisor's own, and what it translates.
const OVERHEAD: u64 = 512 << 20;
/// Threads of one hypervisor: vCPUs, queues and those that wait for disks.
const THREADS: u32 = 512;

/// Where machines' groups are made.
#[derive(Clone, Debug)]
pub struct Groups(Option<PathBuf>);

/// One machine's group. It stays when this is dropped: it is the process's.
#[derive(Debug)]
pub(crate) struct Group(File);

impl Groups {
    /// Looks for cgroup2, and changes nothing.
    pub fn find() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self(mount_point(&mounts).map(|mount| mount.join(NAME)))
    }

    /// Makes our own place in it.
    pub(crate) fn prepare() -> Self {
        let found = Self::find();
        let Some(place) = &found.0 else { return found };
        match fs::create_dir(place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                tracing::debug!(%error, place = %place.display(), "no control groups");
                return Self(None);
            }
            _ => {}
        }
        for directory in place.parent().into_iter().chain([place.as_path()]) {
            for controller in CONTROLLERS {
                // One that is not there, or kept elsewhere, is done without.
                let _ = fs::write(directory.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
        found
    }

    /// Which of the limits a machine's group can have here, for `doctor`.
    pub fn limits(&self) -> Vec<&'static str> {
        let mount = self.0.as_deref().and_then(Path::parent);
        let there = mount.map(|mount| fs::read_to_string(mount.join("cgroup.controllers")));
        let there = there.and_then(Result::ok).unwrap_or_default();
        let mut limits = CONTROLLERS.to_vec();
        limits.retain(|limit| there.split_whitespace().any(|controller| controller == *limit));
        limits
    }

    fn path(&self, id: &MachineId) -> Option<PathBuf> {
        self.0.as_ref().map(|place| place.join(id.as_str()))
    }

    /// What is left to remove when a machine's process has ended: its group,
    /// and these.
    pub(crate) fn leftovers<const N: usize>(&self, id: &MachineId, others: [PathBuf; N]) -> Vec<PathBuf> {
        others.into_iter().chain(self.path(id)).collect()
    }

    pub(crate) fn make(&self, id: &MachineId, cpus: u32, memory: ByteSize) -> Option<Group> {
        let path = self.path(id)?;
        let make = || {
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            File::options().write(true).open(path.join("cgroup.procs"))
        };
        match make() {
            Ok(procs) => {
                limit(&path, "cpu.max", &format!("{} {PERIOD}", u64::from(cpus) * PERIOD));
                limit(&path, "memory.max", &memory.bytes().saturating_add(OVERHEAD).to_string());
                limit(&path, "pids.max", &THREADS.to_string());
                Some(Group(procs))
            }
            Err(error) => {
                tracing::warn!(%error, group = %path.display(), "a machine runs without a control group");
                None
            }
        }
    }
}

impl Group {
    /// Whoever writes 0 to it becomes a member.
    pub(crate) fn door(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A limit whose controller is not here is not set.
fn limit(group: &Path, name: &str, value: &str) {
    match fs::write(group.join(name), value) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, name, value, "cannot set a machine's limit");
        }
        _ => {}
    }
}

/// The fifth field of a line is the mount point; the type follows the dash.
fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let place = place.split(' ').nth(4)?;
        kind.starts_with("cgroup2 ").then(|| PathBuf::from(place))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_is_found_beside_its_predecessor() {
        let hybrid = "\
29 28 0:26 / /sys/fs/cgroup/memory rw,relatime shared:8 - cgroup cgroup rw,memory
30 28 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        assert_eq!(mount_point(hybrid).unwrap(), Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(mount_point("30 28 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"), None);
        assert_eq!(mount_point("nonsense\n"), None);
    }
}
