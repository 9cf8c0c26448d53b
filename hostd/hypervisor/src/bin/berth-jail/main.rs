//! Starts a hypervisor where it can see and reach nothing of the host but what its
//! machine needs. hostd runs one of these for each start, or ahead of it.
//!
//! It has one thread, so everything that it gives up is the process's:
//!
//! 1. The launcher reads what is to be seen, and makes a child of hostd in new mount,
//!    process, IPC and host name namespaces, born in its control group. The launcher ends.
//! 2. The child makes a small root, moves into it and waits for its order (`room`).
//! 3. With the order it gives up the rest and becomes the hypervisor (`leave`). Where
//!    hostd is gone before that, so is the child.
//!
//! Its input is hostd's alone. What it says goes to hostd by the socket that is its
//! standard input.

mod leave;
mod room;

use berth_hypervisor::jail::wire::{Answer, Order, Room, receive, send};
use berth_sys::inherited;
use nix::libc;
use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    process::ExitCode,
};

/// libc's constant of this name does not fit its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn main() -> ExitCode {
    // Closed when a program is executed, which is how hostd knows.
    let socket = match io::stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("berth-jail is for berth-hostd to start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run(&socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A hostd that is gone needs no answer.
            let _ = send(socket.as_fd(), &Answer::Failed(error), &[]);
            ExitCode::FAILURE
        }
    }
}

fn run(socket: &OwnedFd) -> Result<(), String> {
    // A hypervisor that signals its own threads would wait for ever.
    inherited::plain_signals(&[]);
    // Whatever was opened in hostd without the flag must not go on.
    inherited::close_on_exec().map_err(|error| format!("closing descriptors: {error}"))?;
    let message = |error: io::Error| format!("reading what is to be seen: {error}");
    let Some((room, descriptors)) = receive::<Room>(socket.as_fd()).map_err(message)? else { return Ok(()) };
    let group = descriptors.first().map(|group| group.as_fd());
    match clone(group).map_err(|error| format!("making namespaces: {error}"))? {
        Some(child) => {
            send(socket.as_fd(), &Answer::Born(child), &[]).map_err(|error| format!("answering: {error}"))
        }
        None => {
            drop(descriptors);
            jailed(socket, &room)
        }
    }
}

/// The process in the jail. Returns if hostd is gone or something failed.
fn jailed(socket: &OwnedFd, room: &Room) -> Result<(), String> {
    room::enter(room)?;
    send(socket.as_fd(), &Answer::Ready, &[]).map_err(|error| format!("answering: {error}"))?;
    let message = |error: io::Error| format!("reading the order: {error}");
    match receive::<Order>(socket.as_fd()).map_err(message)? {
        Some((order, descriptors)) => leave::execute(order, descriptors).map(|never| match never {}),
        None => Ok(()),
    }
}

/// A child of hostd's in namespaces of its own. `None`: this is the child.
#[allow(unsafe_code)]
fn clone(group: Option<BorrowedFd<'_>>) -> io::Result<Option<i32>> {
    let namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let flags = u64::from((namespaces | libc::CLONE_PARENT).unsigned_abs());
    // SAFETY: all of its fields are numbers, for which zero is a value: no signal but the
    // one that CLONE_PARENT takes over, and the same place on a stack that is copied.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags | group.map_or(0, |_| CLONE_INTO_CGROUP);
    arguments.cgroup = group.map_or(0, |fd| u64::from(fd.as_raw_fd().unsigned_abs()));
    // SAFETY: clone3 reads `arguments`, of which it is told the size. Without CLONE_VM the
    // child has a copy of everything, and there is one thread: both go on as after fork().
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    match i32::try_from(pid) {
        Ok(0) => Ok(None),
        Ok(pid) if pid > 0 => Ok(Some(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}
