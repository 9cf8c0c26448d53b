//! Mounts: those needed to find the disk, the change of root, and those that
//! a running system has.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_move, mount_remount},
};

use super::report;
use crate::error::{Context, Result};

const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC).union(MountFlags::NODEV);
const TMP: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
/// Carried over to the new root.
const CARRIED: [&str; 3] = ["proc", "sys", "dev"];

pub fn first() -> Result<()> {
    on("/proc", "proc", SAFE, "")?;
    on("/sys", "sysfs", SAFE, "")?;
    on("/dev", "devtmpfs", MountFlags::NOSUID, "mode=0755")
}

pub fn second() -> Result<()> {
    on("/dev/pts", "devpts", MountFlags::NOSUID.union(MountFlags::NOEXEC), "gid=5,mode=620,ptmxmode=666")?;
    on("/dev/shm", "tmpfs", TMP, "mode=1777")?;
    on("/sys/fs/cgroup", "cgroup2", SAFE, "nsdelegate")?;
    for (target, link) in [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ] {
        report(symlink(target, link).during("link", link));
    }
    report(fs::create_dir("/run/lock").during("make", "/run/lock"));
    report(
        fs::set_permissions("/run/lock", fs::Permissions::from_mode(0o1777)).during("open up", "/run/lock"),
    );
    Ok(())
}

fn on(target: &str, kind: &str, flags: MountFlags, options: &str) -> Result<()> {
    fs::create_dir_all(target).during("make", target)?;
    match mount(kind, target, kind, flags, &*std::ffi::CString::new(options).unwrap_or_default()) {
        // The kernel may have mounted it by itself.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(error) => Err(error).during("mount", target),
    }
}

/// Makes `root` the root, with this program bound to `program` in it: it costs
/// no copy, and nobody can write to a program that runs.
pub fn switch_root(root: &Path, program: &str) -> Result<()> {
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    on(&inside("/run").to_string_lossy(), "tmpfs", TMP, "mode=0755")?;
    let place = inside(program);
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent).during("make", parent.display())?;
    }
    fs::write(&place, b"").during("make", place.display())?;
    mount_bind("/init", &place).during("bind /init to", place.display())?;
    for name in CARRIED {
        let target = root.join(name);
        fs::create_dir_all(&target).during("make", target.display())?;
        mount_move(Path::new("/").join(name), &target).during("move", name)?;
    }
    // What the initramfs holds is memory; /init itself is still in use.
    report(fs::remove_dir_all("/modules").during("free", "/modules"));
    std::env::set_current_dir(root).during("enter", root.display())?;
    mount_move(".", "/").during("move to /", root.display())?;
    rustix::process::chroot(".").during("change the root to", root.display())?;
    std::env::set_current_dir("/").during("enter", "/")
}

/// Undoes every mount that can be, the last first, and leaves the disk clean.
pub fn release() -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut points: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    points.reverse();
    for point in points.into_iter().filter(|point| *point != "/") {
        // What is busy hangs on the root and goes with it.
        let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
    }
    rustix::fs::sync();
    mount_remount("/", MountFlags::RDONLY, c"").during("make read-only", "/")
}
