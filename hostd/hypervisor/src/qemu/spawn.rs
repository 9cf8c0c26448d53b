//! Starts the process: in its machine's directory and network namespace, as
//! its machine's user, with no privilege, no terminal and no descriptor but
//! the ones it was given. Nothing ties its life to hostd's.

use super::{
    Qemu,
    arguments::{Arguments, CONSOLE, LOG},
    files,
    verdict::{BOOTED, RESTORED},
};
use crate::{Error, Launch, Origin, process::Process};
use nix::libc;
use rustix::{
    fs::{Gid, Mode, OFlags, Uid},
    io::FdFlags,
    process::{Resource, Rlimit, Signal},
    thread::LinkNameSpaceType,
};
use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{net::UnixListener, process::CommandExt},
    },
    path::PathBuf,
    process::{Command, Stdio},
};

/// A guest's memory is in files, so under pressure its process is a better
/// victim than hostd, which all machines share.
const OOM_SCORE: &[u8] = b"500";

/// A start that is not complete: dropped half-way, it leaves nothing.
pub(super) struct Newborn {
    process: Option<Process>,
    /// `None`: it has grown up.
    socket: Option<PathBuf>,
}

impl Newborn {
    pub(super) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    pub(super) fn grown(mut self) -> Option<Process> {
        self.socket = None;
        self.process.take()
    }
}

impl Drop for Newborn {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = std::fs::remove_file(socket);
        }
        let Some(process) = self.process.take() else { return };
        let _ = process.signal(Signal::KILL);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { process.ended().await });
        }
    }
}

/// Blocks for a few milliseconds: to be called where that is allowed.
pub(super) fn spawn(qemu: &Qemu, launch: &Launch) -> Result<Newborn, Error> {
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
    files::log(directory, CONSOLE, launch.uid, first_line).map_err(logs)?;
    let log = files::log(directory, LOG, launch.uid, first_line).map_err(logs)?;
    let mut newborn = Newborn { process: None, socket: Some(launch.socket.clone()) };
    let qmp = listen(launch)?;

    let arguments = Arguments {
        name: launch.id.as_str(),
        accelerator: qemu.accelerator,
        firmware: &qemu.firmware,
        tsc_khz: qemu.tsc_khz,
        cpus: launch.cpus,
        memory,
        kernel: &launch.kernel,
        initrd: &launch.initrd,
        origin: launch.origin,
        qmp: qmp.as_raw_fd(),
        ctl_tap: launch.ctl_tap.as_raw_fd(),
        eth_tap: launch.eth_tap.as_raw_fd(),
    };
    let mut command = Command::new(&qemu.binary);
    command
        .args(arguments.to_line())
        .current_dir(directory)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let confinement = Confinement {
        netns: launch.netns.as_fd(),
        kept: [qmp.as_fd(), launch.ctl_tap.as_fd(), launch.eth_tap.as_fd()],
        uid: launch.uid,
    };
    let child = confinement
        .spawn(&mut command)
        .map_err(|source| Error::Spawn { program: qemu.binary.display().to_string(), source })?;
    newborn.process = Some(Process::of_child(child)?);
    Ok(newborn)
}

/// Bound and listening before there is a process, so that nobody has to wait
/// for a socket to appear.
fn listen(launch: &Launch) -> Result<OwnedFd, Error> {
    let bind = || {
        files::remove(&launch.socket)?;
        UnixListener::bind(&launch.socket).map(OwnedFd::from)
    };
    bind().map_err(|source| Error::Io { operation: "making the control socket", source })
}

struct Confinement<'a> {
    netns: BorrowedFd<'a>,
    kept: [BorrowedFd<'a>; 3],
    uid: u32,
}

impl Confinement<'_> {
    #[allow(unsafe_code)]
    fn spawn(&self, command: &mut Command) -> io::Result<std::process::Child> {
        let netns = self.netns.as_raw_fd();
        let kept = self.kept.map(|fd| fd.as_raw_fd());
        let uid = self.uid;
        // SAFETY: between fork and exec only system calls are made, through
        // rustix, on the stack: nothing allocates, locks or unwinds. The
        // descriptors are borrowed by `self` until the child has executed,
        // which is when `spawn` returns.
        unsafe {
            command.pre_exec(move || {
                let netns = BorrowedFd::borrow_raw(netns);
                confine(netns, kept.map(|fd| BorrowedFd::borrow_raw(fd)), uid)
            });
        }
        command.spawn()
    }
}

/// Runs in the child. The order matters: what needs root comes before the user
/// is changed, and descriptors are closed last.
fn confine(netns: BorrowedFd<'_>, kept: [BorrowedFd<'_>; 3], uid: u32) -> io::Result<()> {
    rustix::thread::move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?;
    rustix::process::setsid()?;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    let score =
        rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&score, OOM_SCORE)?;
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    rustix::thread::set_no_new_privs(true)?;
    close_on_exec()?;
    for fd in kept {
        rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
    }
    Ok(())
}

/// Whatever somebody in hostd opened without the flag must not be inherited.
#[allow(unsafe_code)]
fn close_on_exec() -> io::Result<()> {
    // SAFETY: takes plain numbers; with CLOEXEC it closes nothing in this process.
    let result = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
