//! The root that a hypervisor sees: a tmpfs with read-only views of the few files that
//! it needs, each at its own path.

use berth_hypervisor::jail::wire::{Kind, Room};
use rustix::{
    fs::{FileType, Mode, OFlags},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, mount, mount_bind, mount_change,
        mount_remount, move_mount, unmount,
    },
};
use std::{
    fs::{File, create_dir_all},
    os::fd::BorrowedFd,
    path::{Component, Path, PathBuf},
};

/// Where the new root is until it is the root. It is there on every host, and is not
/// looked at any more once it is covered.
const PLACE: &str = "/proc";
/// A guest's memory is in files, so under pressure its process is a better victim
/// than hostd, which all machines share.
const OOM_SCORE: &[u8] = b"500";
/// What the machine is called inside: the host's name is the host's.
const HOST_NAME: &[u8] = b"berth";
/// Empty files to be covered, and directories.
const OPTIONS: &std::ffi::CStr = c"mode=755,size=1m";

/// What every view is: no set-user-id, no devices unless it is one.
const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Makes the root and moves into it.
pub fn enter(room: &Room) -> Result<(), String> {
    let failed = |what: &'static str| move |error: rustix::io::Errno| format!("{what}: {error}");
    rustix::process::setsid().map_err(failed("starting a session"))?;
    let score =
        rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    score.and_then(|score| rustix::io::write(&score, OOM_SCORE)).map_err(failed("setting the OOM score"))?;
    rustix::system::sethostname(HOST_NAME).map_err(failed("setting the host name"))?;
    // Other users have to pass through the directories.
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(failed("leaving the host's mounts"))?;
    mount("berth", PLACE, "tmpfs", PLAIN | MountFlags::NOEXEC, OPTIONS).map_err(failed("mounting a root"))?;
    for shown in &room.shown {
        let failed = |error| format!("showing {}: {error}", shown.path.display());
        let target =
            below(Path::new(PLACE), &shown.path).ok_or_else(|| failed("no whole path".to_owned()))?;
        cover(&target, shown.path.is_dir()).map_err(|error| failed(error.to_string()))?;
        mount_bind(&shown.path, &target).map_err(|error| failed(error.to_string()))?;
        let flags = match shown.kind {
            Kind::Code => PLAIN | MountFlags::RDONLY,
            Kind::Data => PLAIN | MountFlags::RDONLY | MountFlags::NOEXEC,
            Kind::Device => MountFlags::NOSUID | MountFlags::NOEXEC,
        };
        restrict(&target, flags).map_err(|error| failed(error.to_string()))?;
    }
    rustix::process::chdir(PLACE).map_err(failed("entering the root"))?;
    // The old root lies on the new one after this, and is taken off.
    rustix::process::pivot_root(".", ".").map_err(failed("changing the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(failed("leaving the host's root"))?;
    rustix::process::chdir("/").map_err(failed("entering the root"))
}

/// Shows what hostd has taken a tree of, at its own path.
pub fn show(path: &Path, tree: BorrowedFd<'_>, flags: MountFlags) -> Result<(), String> {
    let failed = |error: String| format!("showing {}: {error}", path.display());
    let kind = rustix::fs::fstat(tree).map_err(|error| failed(error.to_string()))?.st_mode;
    let target = below(Path::new("/"), path).ok_or_else(|| failed("no whole path".to_owned()))?;
    cover(&target, FileType::from_raw_mode(kind) == FileType::Directory)
        .map_err(|error| failed(error.to_string()))?;
    move_mount(tree, c"", rustix::fs::CWD, &target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .and_then(|()| restrict(&target, PLAIN | MountFlags::NOEXEC | flags))
        .map_err(|error| failed(error.to_string()))
}

/// Nothing is added to the root any more.
pub fn close() -> Result<(), String> {
    restrict(Path::new("/"), PLAIN | MountFlags::NOEXEC | MountFlags::RDONLY)
        .map_err(|error| format!("closing the root: {error}"))
}

fn restrict(target: &Path, flags: MountFlags) -> rustix::io::Result<()> {
    mount_remount(target, MountFlags::BIND | flags, c"")
}

/// An absolute path below another root; none with `..` in it.
fn below(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut target = root.to_owned();
    for component in path.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(name) => target.push(name),
            _ => return None,
        }
    }
    (path.is_absolute() && target != root).then_some(target)
}

/// Something to mount on.
fn cover(target: &Path, directory: bool) -> std::io::Result<()> {
    if target.exists() {
        return Ok(());
    }
    if directory {
        return create_dir_all(target);
    }
    target.parent().map_or(Ok(()), create_dir_all)?;
    File::create_new(target).map(drop)
}
