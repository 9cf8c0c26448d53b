//! QEMU processes that are linked before anybody needs one.
//!
//! Half of a start is the program's linking, and all of it is the same whatever the
//! machine. `berth-linked`, a library that hostd preloads, has the program wait after
//! that for what it is to become. It is linked when the host has nothing better to
//! do, and where the library is missing every start is a whole one.

use crate::{
    Error,
    cgroup::{Group, Groups},
    process::Process,
    spawn,
};
use berth_confine::{FIRST, ORDERS, Order};
use berth_launch::Program;
use berth_types::ByteSize;
use nix::libc;
use rustix::{
    io::{DupFlags, Errno},
    net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
        sendmsg, socketpair,
    },
    process::Signal,
};
use std::{
    io::{self, IoSlice},
    mem::{ManuallyDrop, MaybeUninit},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Beside the programs, as they are installed.
pub const LIBRARY: &str = "libberth_linked.so";
/// A machine and the next one; each has some 13 MiB of its own.
const READY: usize = 2;
const LATER: Duration = Duration::from_secs(2);

/// Those that wait.
#[derive(Debug)]
pub(super) struct Ahead {
    program: PathBuf,
    library: PathBuf,
    groups: Groups,
    ready: Mutex<Vec<Linked>>,
}

/// One that waits. Dropped, it is gone.
#[derive(Debug)]
pub(super) struct Linked {
    process: Option<Process>,
    orders: OwnedFd,
    group: Option<Group>,
}

impl Ahead {
    pub(super) fn new(program: PathBuf, library: PathBuf, groups: Groups) -> Arc<Self> {
        Arc::new(Self { program, library, groups, ready: Mutex::default() })
    }

    pub(super) fn take(&self) -> Option<Linked> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Has as many wait as there should be. Returns at once.
    pub(super) fn fill(self: &Arc<Self>) {
        let ahead = self.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn_blocking(move || {
            while ahead.missing() {
                match ahead.link() {
                    Ok(linked) => ahead.ready.lock().unwrap_or_else(PoisonError::into_inner).push(linked),
                    Err(error) => return tracing::warn!(%error, "no hypervisor is linked ahead"),
                }
            }
        });
    }

    /// The same when whoever was started is likely to be up: it needs the cores.
    pub(super) fn fill_later(self: &Arc<Self>) {
        let ahead = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(LATER).await;
            ahead.fill();
        });
    }

    fn missing(&self) -> bool {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).len() < READY
    }

    fn link(&self) -> Result<Linked, Error> {
        let failed = |source| Error::Spawn { program: self.program.display().to_string(), source };
        let (orders, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| failed(error.into()))?;
        let group = self.groups.open("linked");
        let preload = ("LD_PRELOAD".into(), self.library.clone().into_os_string());
        let (name, value) = spawn::ENVIRONMENT;
        let program = Program {
            path: self.program.clone(),
            arguments: vec![self.program.clone().into_os_string()],
            environment: [preload, (name.into(), value.into())].into(),
            streams: [spawn::null()?, spawn::null()?, spawn::null()?],
        };
        let born = spawn::born(&program, group.as_ref(), &|| {
            rustix::process::chdir(c"/")?;
            spawn::close_on_exec()?;
            put(theirs.as_fd())?;
            schedule(0, libc::SCHED_IDLE)
        });
        let process = match born.map_err(failed).and_then(Process::of_child) {
            Ok(process) => process,
            Err(error) => {
                group.iter().for_each(|group| crate::files::discard(group.path()));
                return Err(error);
            }
        };
        Ok(Linked { process: Some(process), orders, group })
    }
}

impl Linked {
    /// What arguments call the descriptors behind the first two that it is given.
    pub(super) const NUMBERS: [RawFd; 3] = [FIRST, FIRST + 1, FIRST + 2];

    /// Has it become a machine's. None: it has ended.
    pub(super) fn obey(
        mut self,
        order: &Order,
        descriptors: &[BorrowedFd<'_>],
        cpus: u32,
        memory: ByteSize,
    ) -> Option<(Process, Option<Group>)> {
        if let Some(group) = &self.group {
            group.limit(cpus, memory);
        }
        let process = self.process.as_ref()?;
        let sent = schedule(process.pid(), libc::SCHED_OTHER)
            .map_err(io::Error::from)
            .and_then(|()| send(&self.orders, &order.to_bytes(), descriptors));
        match sent {
            Ok(()) => Some((self.process.take()?, self.group.take())),
            Err(error) => {
                tracing::warn!(%error, "a hypervisor that was linked ahead is gone");
                None
            }
        }
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        let Some(process) = self.process.take() else { return };
        if process.signal(Signal::KILL).is_ok() {
            process.reap();
        }
        self.group.iter().for_each(|group| crate::files::discard(group.path()));
    }
}

fn send(orders: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(berth_confine::DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fits = bytes.len() <= berth_confine::LONGEST;
    if !fits || !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(orders, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// In a child that is about to execute: the socket, where it will look for it.
#[allow(unsafe_code)]
fn put(socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // SAFETY: what had this number is the child's own copy, which closes on exec.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(ORDERS) });
    if socket.as_raw_fd() == ORDERS {
        return rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty());
    }
    rustix::io::dup3(socket, &mut place, DupFlags::empty())
}

#[allow(unsafe_code)]
fn schedule(pid: i32, policy: i32) -> rustix::io::Result<()> {
    // SAFETY: reads one number, and there is one.
    let result = unsafe { libc::sched_setscheduler(pid, policy, &libc::sched_param { sched_priority: 0 }) };
    if result == 0 { Ok(()) } else { Err(Errno::PERM) }
}
