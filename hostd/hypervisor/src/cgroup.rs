//! A control group for every hypervisor, so that one machine's threads cannot
//! take more than the machine was given. Best effort: a host without cgroup2,
//! or whose controllers are elsewhere, runs machines all the same, and their
//! vCPUs and memory are then bounded by the hypervisor alone.

use crate::Launch;
use berth_types::{ByteSize, MachineId};
use sha2::Digest as _;
use std::{
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
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
/// Between a group's making and its first member there are milliseconds.
const YOUNG: Duration = Duration::from_secs(60);

/// Where machines' groups are made.
#[derive(Clone, Debug)]
pub struct Groups(Option<PathBuf>);

/// A process in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub pid: i32,
    /// `None`: it was started before it had a machine.
    pub machine: Option<MachineId>,
    /// Which installation made the group. `None`: it was made before groups said so.
    pub installation: Option<String>,
}

impl Member {
    /// A group is called MACHINE.INSTALLATION.START; older ones were MACHINE.START.
    fn of(group: &str, pid: i32) -> Self {
        let mut parts = group.split('.');
        let machine = parts.next().and_then(|name| name.parse().ok());
        let installation = parts.next().filter(|_| parts.next().is_some()).map(str::to_owned);
        Self { pid, machine, installation }
    }
}

/// Names the installation whose machines are in this directory, in the names of control groups.
pub fn installation(machines: &Path) -> String {
    let digest = sha2::Sha256::digest(machines.as_os_str().as_bytes());
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// One machine's group. It stays when this is dropped: it is the process's.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    entrance: File,
}

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
        sweep(place);
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

    /// A running process's group, if it is one of ours.
    pub(crate) fn of_process(&self, pid: i32) -> Option<PathBuf> {
        let place = self.0.as_ref()?;
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let path = place.parent()?.join(own);
        (path.parent() == Some(place)).then_some(path)
    }

    /// A group with a machine's limits. Its name says whose process is in it and which
    /// installation made it: a process can change its directory, but not its group.
    pub(crate) fn make(&self, launch: &Launch) -> Option<Group> {
        let installation = launch.directory.parent().map(installation).unwrap_or_default();
        let group = self.open(&format!("{}.{installation}", launch.id))?;
        group.limit(launch.cpus, launch.memory);
        Some(group)
    }

    /// Every process in a group of ours, whichever installation's it is.
    pub fn members(&self) -> Vec<Member> {
        let groups = self.0.iter().flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
        let members = groups.flat_map(|group| {
            let name = group.file_name().to_string_lossy().into_owned();
            let processes = fs::read_to_string(group.path().join("cgroup.procs")).unwrap_or_default();
            let pids: Vec<i32> = processes.lines().filter_map(|pid| pid.parse().ok()).collect();
            pids.into_iter().map(move |pid| Member::of(&name, pid))
        });
        members.collect()
    }

    /// A group without limits, as yet.
    pub(crate) fn open(&self, name: &str) -> Option<Group> {
        // One for each start: whoever clears a failed one away takes no other's.
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = self.0.as_ref()?.join(format!("{name}.{start}"));
        match fs::create_dir(&path).and_then(|()| File::open(&path)) {
            Ok(entrance) => Some(Group { path, entrance }),
            Err(error) => {
                tracing::warn!(%error, group = %path.display(), "a machine runs without a control group");
                None
            }
        }
    }
}

impl Group {
    /// Where a member is born. To move one in takes a grace period of the kernel's,
    /// in which no process on the host starts a thread.
    pub(crate) fn entrance(&self) -> BorrowedFd<'_> {
        self.entrance.as_fd()
    }

    pub(crate) fn limit(&self, cpus: u32, memory: ByteSize) {
        limit(&self.path, "cpu.max", &format!("{} {PERIOD}", u64::from(cpus) * PERIOD));
        limit(&self.path, "memory.max", &memory.bytes().saturating_add(OVERHEAD).to_string());
        limit(&self.path, "pids.max", &THREADS.to_string());
    }

    /// Moves a process in that was born outside.
    pub(crate) fn enter(&self, pid: u32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes groups whose processes ended while nobody looked. Those with members
/// refuse to go, and young ones may be about to get some.
fn sweep(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|found| found.modified()).map(|made| made.elapsed());
        if matches!(age, Ok(Ok(age)) if age > YOUNG) && entry.path().is_dir() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A limit whose controller is not here is not set.
fn limit(group: &Path, name: &str, value: &str) {
    // Not created: the kernel would call that a lack of permission.
    let written = File::options().write(true).open(group.join(name));
    match written.and_then(|mut file| file.write_all(value.as_bytes())) {
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

    #[test]
    fn a_groups_name_says_whose_its_processes_are() {
        let id = MachineId::random();
        let member = |machine: &MachineId, installation: Option<&str>| Member {
            pid: 7,
            machine: Some(machine.clone()),
            installation: installation.map(str::to_owned),
        };
        assert_eq!(Member::of(&format!("{id}.0a1b2c.1763000000"), 7), member(&id, Some("0a1b2c")));
        assert_eq!(Member::of(&format!("{id}.1763000000"), 7), member(&id, None));
        let ahead = Member { pid: 7, machine: None, installation: None };
        assert_eq!(Member::of("linked.1763000000", 7), ahead);
        assert_ne!(installation(Path::new("/a/machines")), installation(Path::new("/b/machines")));
    }
}
