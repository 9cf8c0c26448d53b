//! The machine's disk: awaited, mounted, and grown to the size it was given.

use std::{
    fs::{self, File},
    io,
    mem::MaybeUninit,
    os::unix::fs::FileExt as _,
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
    mount::MountFlags,
};

use super::report;
use crate::error::{Context, Error, Result};

const DEVICE: &str = "/dev/vda";
/// Sectors of 512 bytes, whatever the disk's own are.
const SIZE: &str = "/sys/class/block/vda/size";
/// Requests are put in order and held back by the host, which knows its disk.
const AS_THEY_COME: [(&str, &str); 2] = [("scheduler", "none"), ("wbt_lat_usec", "0")];
/// For a disk's new size to show.
const SHOWS_WITHIN: Duration = Duration::from_secs(2);
const APPEARS_WITHIN: Duration = Duration::from_secs(10);

pub fn mount(root: &Path) -> Result<()> {
    await_device()?;
    for (setting, value) in AS_THEY_COME {
        let path = format!("/sys/class/block/vda/queue/{setting}");
        // A kernel without it has nothing to be told.
        if Path::new(&path).exists() {
            report(fs::write(&path, value).during("set", path));
        }
    }
    fs::create_dir_all(root).during("make", root.display())?;
    // Freed blocks go back to the pool at once.
    rustix::mount::mount(DEVICE, root, "ext4", MountFlags::NOATIME, c"discard")
        .during("mount the disk on", root.display())?;
    report(grow(root));
    Ok(())
}

fn await_device() -> Result<()> {
    let watch = inotify::init(CreateFlags::CLOEXEC).during("watch", "/dev")?;
    inotify::add_watch(&watch, "/dev", WatchFlags::CREATE).during("watch", "/dev")?;
    let deadline = Instant::now() + APPEARS_WITHIN;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    while !Path::new(DEVICE).exists() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new("find", DEVICE, io::ErrorKind::TimedOut.into()));
        }
        let timeout = left.try_into().ok();
        match poll(&mut [PollFd::new(&watch, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => drop(rustix::io::read(&watch, &mut buffer)),
            Err(error) => return Err(error).during("watch", "/dev"),
        }
    }
    Ok(())
}

/// Grows a mounted filesystem to a disk that was just made larger. The kernel
/// learns of the size by an interrupt, which may still be on its way.
pub fn grow_to(root: &Path, size: u64) -> Result<()> {
    let deadline = Instant::now() + SHOWS_WITHIN;
    while bytes()? < size && Instant::now() < deadline {
        // sysfs has no news for this file; the wait is a few ticks at most.
        std::thread::sleep(Duration::from_millis(1));
    }
    grow(root)
}

fn bytes() -> Result<u64> {
    let sectors = fs::read_to_string(SIZE).during("read", SIZE)?;
    Ok(sectors.trim().parse::<u64>().map_or(0, |sectors| sectors.saturating_mul(512)))
}

fn grow(root: &Path) -> Result<()> {
    let device = File::open(DEVICE).during("open", DEVICE)?;
    let mut superblock = [0; 1024];
    device.read_exact_at(&mut superblock, 1024).during("read", DEVICE)?;
    let bytes = bytes()?;
    match growth(&superblock, bytes) {
        None => Ok(()),
        Some(blocks) => {
            let root = File::open(root).during("open", root.display())?;
            rustix::fs::ext4_ioc_resize_fs(&root, blocks).during("grow", "the disk's filesystem")
        }
    }
}

/// How many blocks an ext4 filesystem should have, when that is more than now.
fn growth(superblock: &[u8; 1024], bytes: u64) -> Option<u64> {
    const MAGIC: u32 = 0xef53;
    const WIDE: u32 = 0x80;
    let word = |at: usize| -> Option<u32> {
        superblock.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))
    };
    if word(0x38)? & 0xffff != MAGIC {
        return None;
    }
    let high = if word(0x60)? & WIDE != 0 { word(0x150)? } else { 0 };
    let blocks = (u64::from(high) << 32) | u64::from(word(0x4)?);
    let size = 1024_u64.checked_shl(word(0x18)?)?;
    let room = bytes.checked_div(size)?;
    (room > blocks).then_some(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(blocks: u32) -> [u8; 1024] {
        let mut block = [0; 1024];
        block[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
        block[0x4..0x8].copy_from_slice(&blocks.to_le_bytes());
        block[0x18] = 2;
        block
    }

    #[test]
    fn a_filesystem_grows_to_its_device_and_never_shrinks() {
        assert_eq!(growth(&superblock(1000), 4096 * 1000), None);
        assert_eq!(growth(&superblock(1000), 4096 * 1001 + 5), Some(1001));
        assert_eq!(growth(&superblock(1000), 4096), None);
        assert_eq!(growth(&[0; 1024], 4096), None);
        let mut odd = superblock(1);
        odd[0x18..0x1c].copy_from_slice(&[255; 4]);
        assert_eq!(growth(&odd, 4096), None);
    }
}
