//! The cgroup that holds all of the user's processes: where they are put, how
//! they are frozen for a capture, and how they are ended.

use std::{
    fs,
    io::{self, PipeWriter, Read as _, Seek as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use crate::error::{Context, Error, Result};

/// A freeze takes milliseconds unless a process is stuck in the kernel.
const FREEZE_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Freezer {
    /// None on a host, where nothing is ever frozen.
    cgroup: Option<PathBuf>,
    entrance: OnceLock<OwnedFd>,
    frozen: Mutex<bool>,
    thawed: Condvar,
    /// Who is told of the next freeze, and of the thaw after it.
    listener: Mutex<Option<PipeWriter>>,
}

impl Freezer {
    pub fn new(cgroup: Option<PathBuf>) -> Self {
        Self {
            cgroup,
            entrance: OnceLock::new(),
            frozen: Mutex::new(false),
            thawed: Condvar::new(),
            listener: Mutex::default(),
        }
    }

    /// Waits while the machine is frozen, and keeps it from freezing until the
    /// guard is dropped.
    pub fn admit(&self) -> MutexGuard<'_, bool> {
        let mut frozen = self.lock();
        while *frozen {
            frozen = self.thawed.wait(frozen).unwrap_or_else(PoisonError::into_inner);
        }
        frozen
    }

    /// Has this one told of the next freeze and thaw, instead of the one before.
    pub fn tell(&self, listener: PipeWriter) {
        *self.listener() = Some(listener);
    }

    fn announce(&self) {
        if let Some(listener) = &mut *self.listener() {
            // Who does not listen any more misses nothing.
            let _ = listener.write_all(b"!");
        }
    }

    fn listener(&self) -> MutexGuard<'_, Option<PipeWriter>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a process is born that is one of the user's.
    pub fn entrance(&self) -> Result<Option<BorrowedFd<'_>>> {
        let Some(cgroup) = &self.cgroup else { return Ok(None) };
        if let Some(open) = self.entrance.get() {
            return Ok(Some(open.as_fd()));
        }
        let open = fs::File::open(cgroup).during("open", cgroup.display())?;
        Ok(Some(self.entrance.get_or_init(|| open.into()).as_fd()))
    }

    /// Returns when every process of the user stands still.
    pub fn freeze(&self) -> Result<()> {
        let cgroup = self.cgroup()?;
        let mut frozen = self.lock();
        write(cgroup, "cgroup.freeze", "1")?;
        match wait_for(cgroup, "frozen 1", FREEZE_WITHIN) {
            Ok(()) => {
                if !std::mem::replace(&mut *frozen, true) {
                    self.announce();
                }
                Ok(())
            }
            Err(error) => {
                *self.listener() = None;
                write(cgroup, "cgroup.freeze", "0")?;
                Err(error)
            }
        }
    }

    pub fn thaw(&self) -> Result<()> {
        let cgroup = self.cgroup()?;
        let mut frozen = self.lock();
        write(cgroup, "cgroup.freeze", "0")?;
        if std::mem::take(&mut *frozen) {
            self.announce();
            *self.listener() = None;
        }
        self.thawed.notify_all();
        Ok(())
    }

    pub fn is_frozen(&self) -> bool {
        *self.lock()
    }

    /// The numbers of all processes, those of nested cgroups included.
    pub fn processes(&self) -> Vec<i32> {
        let mut found = Vec::new();
        let mut open: Vec<PathBuf> = self.cgroup.iter().cloned().collect();
        while let Some(directory) = open.pop() {
            let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
            open.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
        }
        found
    }

    /// Waits until no process is left. False: some are.
    pub fn await_empty(&self, within: Duration) -> bool {
        self.cgroup.as_deref().is_none_or(|cgroup| wait_for(cgroup, "populated 0", within).is_ok())
    }

    pub fn kill(&self) -> Result<()> {
        write(self.cgroup()?, "cgroup.kill", "1")
    }

    /// Nanoseconds of CPU that the user's processes have used.
    pub fn cpu_ns(&self) -> u64 {
        let Some(cgroup) = &self.cgroup else { return 0 };
        let text = fs::read_to_string(cgroup.join("cpu.stat")).unwrap_or_default();
        usage(&text).unwrap_or(0).saturating_mul(1000)
    }

    fn cgroup(&self) -> Result<&Path> {
        self.cgroup
            .as_deref()
            .ok_or_else(|| Error::new("freeze", "a host", io::ErrorKind::Unsupported.into()))
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn usage(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok())
}

fn write(cgroup: &Path, file: &str, value: &str) -> Result<()> {
    let path = cgroup.join(file);
    fs::write(&path, value).during("write", path.display())
}

/// The kernel marks the file as changed (POLLPRI) whenever a line of it does.
fn wait_for(cgroup: &Path, line: &str, within: Duration) -> Result<()> {
    let path = cgroup.join("cgroup.events");
    let deadline = Instant::now() + within;
    let mut file = fs::File::open(&path).during("open", path.display())?;
    let mut text = String::new();
    loop {
        text.clear();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).during("read", path.display())?;
        if text.lines().any(|found| found == line) {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(
                "await",
                format!("'{line}' in {}", path.display()),
                Errno::TIMEDOUT.into(),
            ));
        }
        let timeout = left.try_into().ok();
        match poll(&mut [PollFd::new(&file, PollFlags::PRI)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).during("wait for", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_cpu_time() {
        assert_eq!(usage("usage_usec 1234\nuser_usec 1000\n"), Some(1234));
        assert_eq!(usage("nothing"), None);
    }

    #[test]
    fn a_host_has_nothing_to_freeze() {
        let freezer = Freezer::new(None);
        assert!(freezer.freeze().is_err());
        assert!(freezer.entrance().unwrap().is_none());
        assert!(!*freezer.admit());
    }

    #[test]
    fn the_last_listener_hears_of_it() {
        let freezer = Freezer::new(None);
        let (mut replaced, listener) = io::pipe().unwrap();
        freezer.tell(listener);
        let (mut heard, listener) = io::pipe().unwrap();
        freezer.tell(listener);
        freezer.announce();
        drop(freezer);
        let mut words = Vec::new();
        replaced.read_to_end(&mut words).unwrap();
        assert!(words.is_empty());
        heard.read_to_end(&mut words).unwrap();
        assert_eq!(words, b"!");
    }
}
