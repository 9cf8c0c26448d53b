//! Finding and ending what belongs to a run: processes, mounts, loop devices.
//!
//! All three are recognised by the run's directory, so runs side by side and
//! everything else on the host are left alone.

use crate::{scratch::MARK, wait::eventually};
use anyhow::{Context, Result};
use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{self, Command},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(30);

/// One line for each thing that is still there.
pub fn left_behind(directory: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for pid in processes(directory)? {
        found.push(format!("process {pid}: {}", command_line(pid)));
    }
    found.extend(mounts(directory)?.iter().map(|path| format!("mount {}", path.display())));
    found.extend(loops(directory)?.iter().map(|path| format!("loop device {}", path.display())));
    Ok(found)
}

/// Ends all of it.
pub fn sweep(directory: &Path) -> Result<()> {
    end_processes(directory)?;
    for path in mounts(directory)?.iter().rev() {
        umount2(path, MntFlags::MNT_DETACH).with_context(|| format!("cannot unmount {}", path.display()))?;
    }
    for device in loops(directory)? {
        Command::new("losetup").arg("-d").arg(&device).status()?;
    }
    eventually("the run's loop devices to go", LIMIT, || Ok(loops(directory)?.is_empty()))
}

/// Ends what was started by the run, or works in or names its directory.
pub fn end_processes(directory: &Path) -> Result<()> {
    eventually("the run's processes to end", LIMIT, || {
        let alive = processes(directory)?;
        for &pid in &alive {
            // One that ended meanwhile is what we want.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        Ok(alive.is_empty())
    })
}

/// Everything that was started by the run, or works in or names its directory.
fn processes(directory: &Path) -> Result<Vec<i32>> {
    let own = process::id().cast_signed();
    let mark = format!("{MARK}={}", directory.display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let pid = path.file_name().and_then(|name| name.to_str()?.parse::<i32>().ok());
        let Some(pid) = pid.filter(|&pid| pid != own) else { continue };
        let within = fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory));
        let named = contains(&path.join("cmdline"), directory.as_os_str().as_bytes());
        if within || named || contains(&path.join("environ"), mark.as_bytes()) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// False for a process that ended meanwhile.
fn contains(file: &Path, needle: &[u8]) -> bool {
    fs::read(file).is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
}

fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").chars().take(200).collect()
}

/// In the order in which they were made.
fn mounts(directory: &Path) -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    Ok(points.filter(|point| point.starts_with(directory)).collect())
}

/// Those that would stay. One that clears itself goes with its last mount, and
/// a mount of ours would have been found as such.
fn loops(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        // Absent for a loop device that is not in use, and for other disks.
        let Ok(file) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let clears =
            fs::read_to_string(entry.path().join("loop/autoclear")).is_ok_and(|flag| flag.trim() == "1");
        if Path::new(file.trim_end()).starts_with(directory) && !clears {
            found.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(found)
}
