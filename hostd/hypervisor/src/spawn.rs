//! Starts a hypervisor's process: in its machine's directory and network
//! namespace, as its machine's user, with no privilege, no terminal and no
//! descriptor but the ones it was given. Nothing ties its life to hostd's.

use crate::{
    Error, Launch, Origin,
    cgroup::Group,
    files::{self, CONSOLE, LOG},
    process::{Process, collect},
    verdict::{BOOTED, RESTORED},
};
use berth_launch::Program;
use nix::libc;
use rustix::{
    fs::Gid,
    io::{Errno, FdFlags},
    process::Signal,
};
use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, net::UnixListener},
    },
    path::{Path, PathBuf},
};

/// A start that is not complete: dropped half-way, it leaves nothing.
pub(crate) struct Newborn {
    process: Option<Process>,
    /// Removed unless it grows up.
    leftovers: Vec<PathBuf>,
    /// Its control group, which goes after it.
    group: Option<PathBuf>,
}

impl Newborn {
    /// What is at these paths is gone if the start is not completed.
    pub(crate) fn expected(leftovers: Vec<PathBuf>) -> Self {
        Self { process: None, leftovers, group: None }
    }

    /// Starts its process.
    pub(crate) fn bear(
        &mut self,
        program: &Program,
        confinement: &Confinement<'_>,
        group: Option<&Group>,
        directory: &Path,
    ) -> Result<(), Error> {
        self.group = group.map(|group| group.path().to_owned());
        self.process = Some(confinement.start(program, group, directory)?);
        Ok(())
    }

    /// Has one that was started before.
    pub(crate) fn take(&mut self, process: Process, group: Option<&Group>) {
        self.group = group.map(|group| group.path().to_owned());
        self.process = Some(process);
    }

    pub(crate) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// The process, and what is to be removed when it has ended.
    pub(crate) fn grown(mut self) -> Option<(Process, Vec<PathBuf>)> {
        let mut leftovers = std::mem::take(&mut self.leftovers);
        leftovers.extend(self.group.take());
        self.process.take().map(|process| (process, leftovers))
    }
}

impl Drop for Newborn {
    fn drop(&mut self) {
        for path in self.leftovers.drain(..) {
            files::discard(&path);
        }
        let group = self.group.take();
        let Some(process) = self.process.take() else {
            // It did not come to one: nobody is in its group.
            group.iter().for_each(|group| files::discard(group));
            return;
        };
        let _ = process.signal(Signal::KILL);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                process.ended().await;
                // No other start has the same group, so nobody misses it.
                group.as_deref().map(files::discard);
            });
        }
    }
}

/// The files that a start begins with.
pub(crate) struct Laid {
    /// In bytes, whole MiB.
    pub(crate) memory: u64,
    pub(crate) console: File,
    pub(crate) log: File,
}

/// RAM, new or as it was left, and both logs.
pub(crate) fn lay_out(launch: &Launch) -> Result<Laid, Error> {
    let directory = &launch.directory;
    let memory = launch.memory.0 >> 20 << 20;
    let first_line = match launch.origin {
        Origin::Boot => {
            files::fresh_ram(directory, memory, launch.uid)?;
            BOOTED
        }
        Origin::Saved => {
            files::saved_ram(directory, memory, launch.uid)?;
            RESTORED
        }
    };
    let logs = |source| Error::Io { operation: "opening the machine's logs", source };
    let console = files::log(directory, CONSOLE, launch.uid, first_line).map_err(logs)?;
    let log = files::log(directory, LOG, launch.uid, first_line).map_err(logs)?;
    Ok(Laid { memory, console, log })
}

/// Bound and listening before there is a process, so that nobody has to wait
/// for a socket to appear.
pub(crate) fn listen(socket: &Path) -> Result<OwnedFd, Error> {
    let bind = || {
        files::remove(socket)?;
        UnixListener::bind(socket).map(OwnedFd::from)
    };
    bind().map_err(|source| Error::Io { operation: "making the control socket", source })
}

/// What a process is allowed and given.
pub(crate) struct Confinement<'a> {
    pub(crate) netns: BorrowedFd<'a>,
    pub(crate) kept: &'a [BorrowedFd<'a>],
    pub(crate) uid: u32,
    /// A group whose members may open a device that the hypervisor needs.
    pub(crate) device_group: Option<u32>,
}

impl Confinement<'_> {
    fn start(&self, program: &Program, group: Option<&Group>, directory: &Path) -> Result<Process, Error> {
        let groups: Vec<_> = self.device_group.map(Gid::from_raw).into_iter().collect();
        let failed = |source| Error::Spawn { program: program.path.display().to_string(), source };
        let directory =
            CString::new(directory.as_os_str().as_bytes()).map_err(|error| failed(error.into()))?;
        born(program, group, &|| {
            rustix::process::chdir(directory.as_c_str())?;
            berth_confine::confine(self.netns, self.uid, &groups)?;
            close_on_exec()?;
            self.kept.iter().try_for_each(|fd| rustix::io::fcntl_setfd(fd, FdFlags::empty()))
        })
        .map_err(failed)
        .and_then(Process::of_child)
    }
}

/// Starts a child in its group. `prepare` makes system calls and nothing else.
pub(crate) fn born(
    program: &Program,
    group: Option<&Group>,
    prepare: berth_launch::Prepare<'_>,
) -> io::Result<rustix::process::Pid> {
    program.start(group.map(Group::entrance), prepare).map_err(|failed| {
        if let Some(child) = failed.left {
            collect(child);
        }
        failed.error
    })
}

/// What a hypervisor finds in its environment.
pub(crate) const ENVIRONMENT: (&str, &str) = ("PATH", "/usr/local/bin:/usr/bin:/bin");

/// For a process's standard input, and for what nobody reads.
pub(crate) fn null() -> Result<OwnedFd, Error> {
    let null = File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    null.map_err(|source| Error::Io { operation: "opening /dev/null", source })
}

/// Whatever somebody in hostd opened without the flag must not be inherited.
#[allow(unsafe_code)]
pub(crate) fn close_on_exec() -> rustix::io::Result<()> {
    // SAFETY: takes plain numbers; with CLOEXEC it closes nothing in this process.
    let result = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
    if result == 0 { Ok(()) } else { Err(Errno::INVAL) }
}
