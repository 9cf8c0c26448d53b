//! Hypervisors in jails: `berth-jail` makes one and becomes the hypervisor in it.
//!
//! hostd starts that program for each hypervisor ([`Cell::make`]), or has some wait that
//! need nothing but an order any more ([`ahead`]). Nothing of a machine is in a cell
//! before its order, and no program but ours has run in it.

mod ahead;
mod room;
pub mod wire;

use crate::{
    Error, Launch,
    cgroup::{Group, Groups},
    files,
    process::Process,
};
use ahead::Ahead;
use rustix::{
    fs::CWD,
    mount::OpenTreeFlags,
    net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt},
    process::{Pid, Resource, Rlimit, Signal},
    thread::CapabilitySet,
};
use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};
use wire::{Answer, Limits, Order, Room};

pub(crate) use wire::FIRST;

/// The launcher, beside the programs of an installation.
const LAUNCHER: &str = "berth-jail";
/// For a launcher to answer, on a host that starts many.
const LIMIT: Duration = Duration::from_secs(30);
/// A hypervisor's: its files, eventfds for queues, and those of the guest's links.
const DESCRIPTORS: u64 = 1024;
/// As many as its control group allows.
const THREADS: u64 = 512;
/// Logs, and device state, may become as large as this whatever the machine's size.
const SMALL_FILES: u64 = 64 << 20;

/// How a driver's processes are started.
#[derive(Clone, Debug)]
pub(crate) struct Jail {
    launcher: PathBuf,
    room: Room,
    groups: Groups,
    ahead: Option<Arc<Ahead>>,
}

/// What is started in a jail, beside the machine's own.
pub(crate) struct Program<'a> {
    pub(crate) path: PathBuf,
    /// Its name is the first.
    pub(crate) arguments: Vec<std::ffi::OsString>,
    /// Standard input, output and error.
    pub(crate) streams: [OwnedFd; 3],
    /// What the arguments speak of, by the numbers from [`FIRST`] on.
    pub(crate) kept: &'a [BorrowedFd<'a>],
    /// Files beside the machine's directory that this machine needs.
    pub(crate) files: Vec<PathBuf>,
    /// A group whose members may open a device that the hypervisor needs.
    pub(crate) device_group: Option<u32>,
}

impl Jail {
    pub(crate) fn new(room: Room) -> Result<Self, Error> {
        Ok(Self { launcher: launcher()?, room, groups: Groups::prepare(), ahead: None })
    }

    /// Has cells wait for orders from now on.
    pub(crate) fn start_ahead(&mut self) {
        let ahead = Ahead::new(Self { ahead: None, ..self.clone() });
        ahead.fill();
        self.ahead = Some(ahead);
    }

    /// Has as many cells wait as there should be, when the machine that was started is
    /// likely to be up: it needs the cores.
    pub(crate) fn fill_later(&self) {
        self.ahead.iter().for_each(Ahead::fill_later);
    }

    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Starts a program as a machine's hypervisor. Returns when it executes; blocks.
    pub(crate) fn start(
        &self,
        launch: &Launch,
        program: Program<'_>,
    ) -> Result<(Process, Option<Group>), Error> {
        let order = Order {
            directory: launch.directory.clone(),
            uid: launch.uid,
            groups: program.device_group.into_iter().collect(),
            limits: limits(launch),
            environment: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
            files: program.files,
            program: program.path,
            arguments: program.arguments,
        };
        let failed = |source| Error::Spawn { program: order.program.display().to_string(), source };
        let trees = [(&order.directory, OpenTreeFlags::AT_SYMLINK_NOFOLLOW)]
            .into_iter()
            .chain(order.files.iter().map(|file| (file, OpenTreeFlags::empty())));
        let trees: Vec<_> = trees.map(|(path, flags)| tree(path, flags)).collect::<Result<_, _>>()?;
        let mut descriptors = vec![launch.netns.as_fd()];
        descriptors.extend(trees.iter().map(OwnedFd::as_fd));
        descriptors.extend(program.streams.iter().map(OwnedFd::as_fd));
        descriptors.extend(program.kept);
        if let Some(cell) = self.ahead.as_ref().and_then(|ahead| ahead.take()) {
            cell.limit(launch);
            match cell.become_hypervisor(&order, &descriptors) {
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    tracing::warn!(%error, "a jail that was made ahead is gone");
                }
                other => return other.map_err(failed),
            }
        }
        let cell = Cell::make(self, self.groups.make(launch)).map_err(failed)?;
        cell.become_hypervisor(&order, &descriptors).map_err(failed)
    }
}

/// Lets a process write larger files: its disk has grown.
pub(crate) fn allow_file_size(process: &Process, size: u64) -> Result<(), Error> {
    if !may_raise_limits() {
        return Ok(());
    }
    let size = size.max(SMALL_FILES);
    let most = Rlimit { current: Some(size), maximum: Some(size) };
    match rustix::process::prlimit(Pid::from_raw(process.pid()), Resource::Fsize, most) {
        // Gone, which whoever asks it for something is told.
        Err(rustix::io::Errno::SRCH) => Ok(()),
        other => other.map(drop).map_err(|error| Error::Io {
            operation: "raising the hypervisor's limit of file size",
            source: error.into(),
        }),
    }
}

fn limits(launch: &Launch) -> Limits {
    let disk = launch.directory.join(files::DISK).symlink_metadata().map_or(0, |found| found.len());
    let mut file_size = disk.max(launch.disk.bytes()).max(launch.memory.bytes()).max(SMALL_FILES);
    if !may_raise_limits() {
        // Once set it stays, and a disk may grow; one that has holes may be larger than the pool.
        let pool = rustix::fs::statvfs(&launch.directory);
        let pool = pool.map_or(u64::MAX, |pool| pool.f_blocks.saturating_mul(pool.f_frsize));
        file_size = file_size.max(pool);
    }
    Limits { file_size, descriptors: DESCRIPTORS, threads: THREADS }
}

/// Root in a container may be without this.
fn may_raise_limits() -> bool {
    let own = rustix::thread::capabilities(None);
    own.is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_RESOURCE))
}

/// A place of the host's to be shown in a jail: only its own mounts can be taken of it.
fn tree(path: &Path, flags: OpenTreeFlags) -> Result<OwnedFd, Error> {
    let flags = flags | OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(CWD, path, flags).map_err(|error| Error::Refused {
        operation: "starting the machine",
        message: format!("{}: {}", path.display(), io::Error::from(error)),
    })
}

/// Beside this program, or, for a test, beside the directory of tests.
fn launcher() -> Result<PathBuf, Error> {
    let own = std::env::current_exe();
    let own = own.map_err(|source| Error::Io { operation: "finding this program", source })?;
    let places = own.ancestors().skip(1).take(2);
    places.map(|place| place.join(LAUNCHER)).find(|path| path.is_file()).ok_or_else(|| Error::Refused {
        operation: "finding berth-jail",
        message: format!("{LAUNCHER} is not beside {}: install it there", own.display()),
    })
}

/// A process in a jail that waits for its order. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Cell {
    process: Option<Process>,
    socket: OwnedFd,
    group: Option<Group>,
}

impl Cell {
    /// Blocks for some milliseconds. The group goes if this fails.
    fn make(jail: &Jail, group: Option<Group>) -> io::Result<Self> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(LIMIT))?;
        let mut cell = Self { process: None, socket, group };
        let mut launcher = Command::new(&jail.launcher);
        launcher.env_clear().current_dir("/").stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        let mut launcher = launcher.spawn()?;
        let made = cell.furnish(&jail.room);
        if made.is_err() {
            let _ = launcher.kill();
        }
        launcher.wait()?;
        made.map(|()| cell)
    }

    /// What the launcher and its child say arrives in either order.
    fn furnish(&mut self, room: &Room) -> io::Result<()> {
        let entrance = self.group.as_ref().map(Group::entrance);
        wire::send(self.socket.as_fd(), room, entrance.as_slice())?;
        let mut ready = false;
        while !ready || self.process.is_none() {
            match wire::receive(self.socket.as_fd())?.map(|(answer, _)| answer) {
                Some(Answer::Born(pid)) => {
                    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
                    self.process = Some(Process::of_child(pid).map_err(io::Error::other)?);
                }
                Some(Answer::Ready) => ready = true,
                Some(Answer::Failed(reason)) => return Err(io::Error::other(reason)),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(())
    }

    /// For one that was made before its machine was known.
    fn limit(&self, launch: &Launch) {
        self.group.iter().for_each(|group| group.limit(launch.cpus, launch.memory));
    }

    /// `NotConnected`: it had ended before it was asked.
    fn become_hypervisor(
        mut self,
        order: &Order,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(Process, Option<Group>)> {
        wire::send(self.socket.as_fd(), order, descriptors).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => io::ErrorKind::NotConnected.into(),
            _ => error,
        })?;
        match wire::receive(self.socket.as_fd())? {
            // Its end was closed as the program was executed.
            None => {}
            Some((Answer::Failed(reason), _)) => return Err(io::Error::other(reason)),
            Some((answer, _)) => return Err(io::Error::other(format!("{answer:?} is no answer"))),
        }
        let process = self.process.take().ok_or(io::ErrorKind::NotFound)?;
        Ok((process, self.group.take()))
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        if let Some(process) = self.process.take()
            && process.signal(Signal::KILL).is_ok()
        {
            process.reap();
        }
        self.group.iter().for_each(|group| files::discard(group.path()));
    }
}
