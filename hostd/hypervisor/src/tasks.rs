//! What the kernel says of every thread of a process, for hostd before a guest runs
//! and for tests.
//!
//! Ids, capabilities and filters belong to threads. A process whose first thread is
//! confined may have another that is not, and one is enough for whoever takes the
//! process over.

use rustix::{
    fs::{AtFlags, CWD, fstat, statat},
    io::Errno,
};
use std::{collections::BTreeMap, fmt, fs, io, os::fd::BorrowedFd, path::PathBuf};

/// One thread, as /proc/PID/task/TID/status has it.
#[derive(Clone, Debug)]
pub struct Task {
    pub tid: u32,
    pub name: String,
    fields: BTreeMap<String, String>,
    place: PathBuf,
}

/// A thread that has what it should not have.
#[derive(Debug, PartialEq, Eq)]
pub struct Unconfined {
    tid: u32,
    name: String,
    what: String,
}

impl fmt::Display for Unconfined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its thread {} ({}) {}", self.tid, self.name, self.what)
    }
}

/// All threads of a process; those that end meanwhile are left out.
pub fn of(pid: i32) -> io::Result<Vec<Task>> {
    let mut tasks = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let place = entry?.path();
        let gone = |error: &io::Error| {
            error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
        };
        match fs::read_to_string(place.join("status")) {
            Ok(status) => tasks.extend(Task::parse(place, &status)),
            Err(error) if gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if tasks.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(tasks) }
}

impl Task {
    /// A thread that has ended and was not collected has no more than a name.
    fn parse(place: PathBuf, status: &str) -> Option<Self> {
        let lines = status.lines().filter_map(|line| line.split_once(':'));
        let words = |value: &str| value.split_whitespace().collect::<Vec<_>>().join(" ");
        let fields: BTreeMap<_, _> = lines.map(|(name, value)| (name.to_owned(), words(value))).collect();
        let state = fields.get("State")?;
        if state.starts_with(['Z', 'X']) {
            return None;
        }
        Some(Self { tid: fields.get("Pid")?.parse().ok()?, name: fields.get("Name")?.clone(), fields, place })
    }

    /// A line of the file, by its name; empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// A line that is a set in hexadecimal, such as of signals or capabilities. A line
    /// that is not there is a full set, for nothing may be read from its absence.
    pub fn set(&self, name: &str) -> u64 {
        u64::from_str_radix(self.field(name), 16).unwrap_or(u64::MAX)
    }

    /// Real, effective, saved and filesystem ids are all this one.
    pub fn has_only(&self, ids: &str, id: u32) -> bool {
        let found: Vec<_> = self.field(ids).split(' ').collect();
        found.len() == 4 && found.iter().all(|found| *found == id.to_string())
    }

    /// A namespace's number, by the name of its link.
    pub fn namespace(&self, name: &str) -> io::Result<(u64, u64)> {
        let found = statat(CWD, self.place.join("ns").join(name), AtFlags::empty())?;
        Ok((found.st_dev, found.st_ino))
    }

    fn unconfined(&self, what: impl Into<String>) -> Unconfined {
        let name = self.name.chars().filter(|c| !c.is_control()).collect();
        Unconfined { tid: self.tid, name, what: what.into() }
    }

    fn check(&self, expected: &Expected) -> Result<(), Unconfined> {
        for ids in ["Uid", "Gid"] {
            if !self.has_only(ids, expected.uid) {
                return Err(self.unconfined(format!("has {ids} {}", self.field(ids))));
            }
        }
        let groups = self.field("Groups").split_whitespace();
        let device = expected.device_group.map(|group| group.to_string());
        if let Some(other) = groups.into_iter().find(|group| Some(*group) != device.as_deref()) {
            return Err(self.unconfined(format!("is in group {other}")));
        }
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            if self.set(set) != 0 {
                return Err(self.unconfined(format!("has capabilities ({set} {})", self.field(set))));
            }
        }
        if self.field("NoNewPrivs") != "1" {
            return Err(self.unconfined("may gain privileges"));
        }
        if self.field("Seccomp") != "2" {
            return Err(self.unconfined("has no filter of system calls"));
        }
        let netns = self.namespace("net").map_err(|error| self.unconfined(error.to_string()))?;
        if expected.netns.is_some_and(|expected| netns != expected) {
            return Err(self.unconfined("is in another network namespace"));
        }
        for (name, hosts) in &expected.hosts {
            let own = self.namespace(name).map_err(|error| self.unconfined(error.to_string()))?;
            if own == *hosts {
                return Err(self.unconfined(format!("is in the host's {name} namespace")));
            }
        }
        Ok(())
    }
}

/// Namespaces of a hypervisor: four of its jail, and its machine's network.
const JAILED: [&str; 5] = ["ipc", "mnt", "net", "pid", "uts"];

/// What every thread of a hypervisor has to have.
#[derive(Clone, Debug)]
pub struct Expected {
    uid: u32,
    /// The only group beside its own that it may be in.
    device_group: Option<u32>,
    /// Device and number of its network namespace, where that is known.
    netns: Option<(u64, u64)>,
    /// This process's own namespaces, by name: a hypervisor is in none of them.
    hosts: Vec<(&'static str, (u64, u64))>,
}

impl Expected {
    /// Of a hypervisor that was started for a network.
    pub fn started(uid: u32, device_group: Option<u32>, netns: BorrowedFd<'_>) -> io::Result<Self> {
        let netns = fstat(netns)?;
        Ok(Self { netns: Some((netns.st_dev, netns.st_ino)), ..Self::found(uid, device_group)? })
    }

    /// Of a hypervisor that an earlier hostd started, perhaps an earlier version.
    pub fn found(uid: u32, device_group: Option<u32>) -> io::Result<Self> {
        let own = |name| {
            let found = statat(CWD, PathBuf::from("/proc/self/ns").join(name), AtFlags::empty())?;
            Ok((name, (found.st_dev, found.st_ino)))
        };
        let hosts = JAILED.map(own).into_iter().collect::<io::Result<_>>()?;
        Ok(Self { uid, device_group, netns: None, hosts })
    }

    /// Whether each thread of a process is confined. Threads that come later have what
    /// the one has that makes them, and nothing can be regained.
    pub fn check(&self, pid: i32) -> io::Result<Result<(), Unconfined>> {
        Ok(of(pid)?.iter().try_for_each(|task| task.check(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFINED: &str = "Name:\tqemu\nState:\tS (sleeping)\nPid:\t7\nUid:\t700001\t700001\t700001\t700001\n\
        Gid:\t700001\t700001\t700001\t700001\nGroups:\t104 \nCapInh:\t0000000000000000\n\
        CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";

    /// In this test's own namespace.
    fn checked(status: &str) -> Result<(), Unconfined> {
        let task = Task::parse("/proc/self".into(), status).unwrap();
        let netns = Some(task.namespace("net").unwrap());
        task.check(&Expected { uid: 700_001, device_group: Some(104), netns, hosts: Vec::new() })
    }

    #[test]
    fn one_that_has_what_it_should_is_confined() {
        assert_eq!(checked(CONFINED), Ok(()));
        assert_eq!(checked(&CONFINED.replace("104", "")), Ok(()));
    }

    #[test]
    fn each_thing_too_much_is_told() {
        for (is, would_be, told) in [
            ("700001\t700001\nGid", "700001\t0\nGid", "Uid 700001 700001 700001 0"),
            ("Gid:\t700001", "Gid:\t0", "Gid 0"),
            ("104", "104 27", "group 27"),
            ("CapPrm:\t0000000000000000", "CapPrm:\t0000000000000001", "CapPrm"),
            ("CapBnd:\t0000000000000000", "CapBnd:\t000001ffffffffff", "CapBnd"),
            ("CapAmb:\t0000000000000000\n", "", "CapAmb"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "privileges"),
            ("Seccomp:\t2", "Seccomp:\t0", "no filter"),
        ] {
            let status = CONFINED.replacen(is, would_be, 1);
            let error = checked(&status).expect_err(told).to_string();
            assert!(error.starts_with("its thread 7 (qemu) ") && error.contains(told), "{error}");
        }
    }

    #[test]
    fn one_in_a_namespace_of_the_hosts_is_told() {
        let task = Task::parse("/proc/self".into(), CONFINED).unwrap();
        let hosts = vec![("mnt", task.namespace("mnt").unwrap())];
        let expected = Expected { uid: 700_001, device_group: Some(104), netns: None, hosts };
        assert!(task.check(&expected).unwrap_err().to_string().contains("mnt namespace"));
    }

    #[test]
    fn threads_are_all_seen_and_this_one_is_not_confined() {
        let (end, waits) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || waits.recv().is_err());
        let own = std::process::id();
        let tasks = of(own.try_into().unwrap()).unwrap();
        assert!(tasks.len() > 1 && tasks.iter().any(|task| task.tid == own));
        let netns = fs::File::open("/proc/self/ns/net").unwrap();
        let expected = Expected::started(700_001, None, std::os::fd::AsFd::as_fd(&netns)).unwrap();
        assert!(expected.check(own.try_into().unwrap()).unwrap().is_err());
        drop(end);
        assert!(thread.join().unwrap());
        assert!(of(i32::MAX).is_err());
    }
}
