//! The pool: a filesystem with reflinks.
//!
//! Where the data directory is on one (XFS, btrfs), the pool is a plain
//! directory. Elsewhere it is an XFS of our own in a sparse file, mounted
//! through a loop device with direct I/O, so that nothing is cached twice.

use crate::error::{Error, FileContext, IoContext, Result};
use crate::private::make_tight;
use berth_sys::{beneath::sync_parent, private::PASSABLE};
use berth_types::ByteSize;
use std::{
    fs::{File, Permissions, set_permissions},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::process::Command;

/// How long a pool that is to be unmounted may stay busy.
const BUSY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Pool {
    path: PathBuf,
    /// The file behind our own mount, whose filesystem may fill up first.
    backing: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
pub struct Space {
    pub free: ByteSize,
    pub size: ByteSize,
}

impl Pool {
    pub async fn open(data: &Path, size: ByteSize) -> Result<Self> {
        let path = data.join("pool");
        make_tight(&path, PASSABLE)?;
        let backing = data.join("pool.xfs");
        if is_mount_point(&path)? {
            return Ok(Self { path, backing: Some(backing).filter(|file| file.exists()) });
        }
        if !backing.exists() {
            if reflinks(&path)? {
                return Ok(Self { path, backing: None });
            }
            format(&backing, size).await?;
        }
        mount(&backing, &path).await?;
        // A new filesystem's own root is open to all.
        set_permissions(&path, Permissions::from_mode(PASSABLE)).file("protect", &path)?;
        tracing::info!(pool = %path.display(), "mounted the pool");
        Ok(Self { path, backing: Some(backing) })
    }

    #[cfg(test)]
    pub fn plain(path: PathBuf) -> Self {
        Self { path, backing: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lesser of what the pool and the disk below it have left.
    pub fn space(&self) -> Result<Space> {
        let pool = space_of(&self.path)?;
        let below = match self.backing.as_deref().and_then(Path::parent) {
            Some(parent) => space_of(parent)?.free,
            None => pool.free,
        };
        Ok(Space { free: pool.free.min(below), size: pool.size })
    }

    pub async fn close(&self) -> Result<()> {
        let deadline = Instant::now() + BUSY;
        while self.backing.is_some() && is_mount_point(&self.path)? {
            match run(Command::new("umount").arg(&self.path), "umount").await {
                // A process that ended just now may still be letting go of its files.
                Err(error) if Instant::now() < deadline => {
                    tracing::debug!(error = error.chain(), "the pool is busy");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                result => return result.map(drop),
            }
        }
        Ok(())
    }
}

fn space_of(path: &Path) -> Result<Space> {
    let stat = rustix::fs::statvfs(path).file("measure", path)?;
    let bytes = |blocks: u64| ByteSize(blocks.saturating_mul(stat.f_frsize));
    Ok(Space { free: bytes(stat.f_bavail), size: bytes(stat.f_blocks) })
}

/// A mount point is on another device than its parent.
fn is_mount_point(path: &Path) -> Result<bool> {
    let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev).file("look at", path);
    let parent = path.parent().unwrap_or(path);
    Ok(device(path)? != device(parent)?)
}

/// Asks the filesystem by doing it.
fn reflinks(directory: &Path) -> Result<bool> {
    let (one, two) = (directory.join(".reflink-from"), directory.join(".reflink-to"));
    std::fs::write(&one, [1u8; 4096]).file("write", &one)?;
    let from = File::open(&one).file("open", &one)?;
    let to = File::create(&two).file("create", &two)?;
    let works = rustix::fs::ioctl_ficlone(&to, &from).is_ok();
    for file in [&one, &two] {
        std::fs::remove_file(file).file("remove", file)?;
    }
    Ok(works)
}

async fn format(backing: &Path, size: ByteSize) -> Result<()> {
    let fresh = backing.with_extension("xfs.new");
    // Every machine's disk and memory will be in it.
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh);
    file.and_then(|file| file.set_len(size.bytes())).file("create", &fresh)?;
    run(Command::new("mkfs.xfs").args(["-q", "-f", "-m", "reflink=1"]).arg(&fresh), "mkfs.xfs").await?;
    std::fs::rename(&fresh, backing).file("rename", backing)?;
    sync_parent(backing).file("sync", backing)
}

async fn mount(backing: &Path, path: &Path) -> Result<()> {
    // `-o loop` frees the device by itself when the pool is unmounted.
    let mut command = Command::new("mount");
    command.args(["-t", "xfs", "-o", "loop,noatime,discard"]).arg(backing).arg(path);
    run(&mut command, "mount").await?;
    let device = run(Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(path), "findmnt").await?;
    let direct = run(Command::new("losetup").arg("--direct-io=on").arg(device.trim()), "losetup").await;
    if let Err(error) = direct {
        tracing::warn!(error = error.chain(), "no direct I/O below the pool: what it holds is cached twice");
    }
    Ok(())
}

async fn run(command: &mut Command, program: &'static str) -> Result<String> {
    let output = command.stdin(std::process::Stdio::null()).output().await.during(program)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let output = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Error::Program { program, output })
}
