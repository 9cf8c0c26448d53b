//! One cgroup for all of the user's processes; guest-init stays outside.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::report;
use crate::error::{Context, Result};

const ROOT: &str = "/sys/fs/cgroup";
/// Of a hundred threads that the kernel allows, those the user may have. The
/// rest keeps a way in when a program forks without end.
const SHARE: u64 = 90;

pub fn prepare() -> Result<PathBuf> {
    let root = Path::new(ROOT);
    // The others are the user's to turn on: memory that is accounted for and a second
    // level of scheduling cost every page and every switch.
    report(fs::write(root.join("cgroup.subtree_control"), "+pids").during("count", "threads"));
    let user = root.join("user");
    fs::create_dir_all(&user).during("make", user.display())?;
    if let Some(limit) = thread_limit() {
        report(fs::write(user.join("pids.max"), limit.to_string()).during("limit", user.display()));
    }
    Ok(user)
}

fn thread_limit() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let most = read("/proc/sys/kernel/threads-max")?.min(read("/proc/sys/kernel/pid_max")?);
    Some(most * SHARE / 100)
}
