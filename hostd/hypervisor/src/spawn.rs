//! Starts a hypervisor's process: in its machine's directory and network
//! namespace, as its machine's user, with no privilege, no terminal and no
//! descriptor but the ones it was given. Nothing ties its life to hostd's.

use crate::{
    Error, Launch, Origin,
    cgroup::Group,
    files::{self, CONSOLE, LOG},
    process::Process,
    verdict::{BOOTED, RESTORED},
};
use nix::libc;
use rustix::{
    fs::{Gid, Mode, OFlags, Uid},
    io::FdFlags,
    process::{Resource, Rlimit, Signal},
    thread::LinkNameSpaceType,
};
use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::{net::UnixListener, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A guest's memory is in files, so under pressure its process is a better
/// victim than hostd, which all machines share.
const OOM_SCORE: &[u8] = b"500";

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
        mut confinement: Confinement<'_>,
        command: Command,
        directory: &Path,
    ) -> Result<(), Error> {
        let group = confinement.cgroup.take();
        self.group = group.as_ref().map(|group| group.path().to_owned());
        let process = self.process.insert(Process::of_child(confinement.spawn(command, directory)?)?);
        // Not by the child itself, which would wait for a grace period of the
        // kernel's before it executes; so it is being linked meanwhile. It has
        // no guest yet, and gets none if this fails.
        match group.map_or(Ok(()), |group| group.admit(process.pid())) {
            // It has ended already; why is for those to find out who wait for it.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            admitted => admitted.map_err(|source| Error::Io { operation: "confining a hypervisor", source }),
        }
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
        let Some(process) = self.process.take() else { return };
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
    pub(crate) cgroup: Option<Group>,
}

impl Confinement<'_> {
    /// Starts the command, whose standard output and error are the caller's.
    fn spawn(&self, mut command: Command, directory: &Path) -> Result<std::process::Child, Error> {
        command
            .current_dir(directory)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(Stdio::null());
        let program = command.get_program().to_string_lossy().into_owned();
        self.run(&mut command).map_err(|source| Error::Spawn { program, source })
    }

    #[allow(unsafe_code)]
    fn run(&self, command: &mut Command) -> io::Result<std::process::Child> {
        let plan = Plan {
            netns: self.netns.as_raw_fd(),
            kept: self.kept.iter().map(AsRawFd::as_raw_fd).collect(),
            user: Uid::from_raw(self.uid),
            group: Gid::from_raw(self.uid),
            groups: self.device_group.map(Gid::from_raw).into_iter().collect(),
        };
        // SAFETY: between fork and exec only system calls are made, through
        // rustix, on memory that was allocated before: nothing allocates, locks
        // or unwinds. The descriptors are borrowed by `self` until the child has
        // executed, which is when `spawn` returns.
        unsafe {
            command.pre_exec(move || plan.confine());
        }
        command.spawn()
    }
}

/// All that the child needs to know, laid out before it is there.
struct Plan {
    netns: RawFd,
    kept: Vec<RawFd>,
    user: Uid,
    group: Gid,
    groups: Vec<Gid>,
}

impl Plan {
    /// Runs in the child. The order matters: what needs root comes before the
    /// user is changed, and descriptors are closed last.
    #[allow(unsafe_code)]
    fn confine(&self) -> io::Result<()> {
        // SAFETY: these are open in the parent until it has seen the child execute.
        let borrow = |fd: RawFd| unsafe { BorrowedFd::borrow_raw(fd) };
        let netns = borrow(self.netns);
        rustix::thread::move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?;
        rustix::process::setsid()?;
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(Resource::Core, none)?;
        let score =
            rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&score, OOM_SCORE)?;
        rustix::thread::set_thread_groups(&self.groups)?;
        rustix::thread::set_thread_res_gid(self.group, self.group, self.group)?;
        rustix::thread::set_thread_res_uid(self.user, self.user, self.user)?;
        rustix::thread::set_no_new_privs(true)?;
        close_on_exec()?;
        for fd in &self.kept {
            rustix::io::fcntl_setfd(borrow(*fd).as_fd(), FdFlags::empty())?;
        }
        Ok(())
    }
}

/// Whatever somebody in hostd opened without the flag must not be inherited.
#[allow(unsafe_code)]
fn close_on_exec() -> io::Result<()> {
    // SAFETY: takes plain numbers; with CLOEXEC it closes nothing in this process.
    let result = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
