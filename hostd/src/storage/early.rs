//! Memory that is cloned ahead of a capture.
//!
//! To clone a memory takes 10 to 20 µs an extent, and captures add extents: after some
//! dozens there are thousands, for which a source would stand still for 30 ms. So it is
//! cloned while the machine runs, a few extents at a time, for the kernel keeps whoever
//! writes waiting meanwhile. When it stands still only what has moved since is cloned
//! again: blocks that two files share are never written in place, so whatever is where
//! the clone has it is what the clone has.
//!
//! What a guest writes to in its last milliseconds, some two hundred single pages of its
//! kernel, is much the same every time. To write each out, to a new place, takes longer
//! than everything else. So those that were seen to move before are copied.

use super::{
    directory::RAM,
    extents::{self, Extent},
    generation::open,
};
use crate::error::{FileContext, Result};
use berth_sys::{Access, Directory, machine::Files};
use std::{
    fs::File,
    io,
    ops::Range,
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::FileExt as _,
    },
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Extents that are cloned at once: about a millisecond's.
const FEW: usize = 64;
/// A memory of fewer is cloned whole in no time.
const MANY: usize = 256;
/// Parts that are larger are written out faster than copied.
const SMALL: u64 = 64 << 10;
/// More than this is not much the same every time.
const BUSY: usize = 1024;

/// Parts of a machine's memory that were seen to move, in order. Kept by whoever captures
/// it again; any are as right as none.
pub type Busy = Arc<Mutex<Vec<Range<u64>>>>;

/// A machine's RAM as it was a moment ago. It has no name, so nothing is left of one that
/// comes to nothing.
#[derive(Debug)]
pub struct Early {
    clone: File,
    /// Where its data is.
    extents: Vec<Extent>,
    busy: Busy,
}

impl Early {
    /// While the machine runs. None where it is not worth it.
    pub fn of(machine: &Files, busy: Busy) -> Result<Option<Self>> {
        let ram = machine.path().join(RAM);
        let source = open(machine, RAM, Access::Read)?;
        let extents = extents::written(&source).file("map", &ram)?;
        if extents.len() < MANY {
            return Ok(None);
        }
        let size = source.metadata().file("look at", &ram)?.len();
        let clone = machine.nameless().file("make a file in", machine.path())?;
        clone.set_len(size).file("size a clone of", &ram)?;
        // It may be elsewhere by now, and then it is cloned from there.
        for few in extents.chunks(FEW) {
            if let (Some(first), Some(last)) = (few.first(), few.last()) {
                clone_range(&source, &clone, first.at..last.end()).file("clone", &ram)?;
            }
        }
        let extents = extents::written(&clone).file("map a clone of", &ram)?;
        Ok(Some(Self { clone, extents, busy }))
    }

    /// When it stands still: what the clone lacks, and a name.
    pub fn finish(&self, source: &File, to: &Directory, name: &str) -> Result<()> {
        let clock = Instant::now();
        let ram = &to.path().join(name);
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        for part in busy.iter() {
            copy(source, &self.clone, part).file("copy", ram)?;
        }
        let copied = clock.elapsed();
        let size = source.metadata().file("look at", ram)?.len();
        write_out_around(source, size, &busy).file("write out", ram)?;
        let written_out = clock.elapsed();
        let now = extents::written(source).file("map", ram)?;
        let moved = without(extents::differences(&now, &self.extents), &busy);
        let mapped = clock.elapsed();
        for part in &moved {
            clone_range(source, &self.clone, part.clone()).file("clone", ram)?;
        }
        to.link(&self.clone, name).file("name", ram)?;
        tracing::debug!(
            ?copied, ?written_out, ?mapped, cloned = ?clock.elapsed(),
            extents = now.len(), busy = busy.len(), moved = moved.len(),
            "cloned what had moved"
        );
        *busy = together(&busy, moved);
        Ok(())
    }
}

/// What to copy next time: what was copied this time, and what else has moved.
fn together(busy: &[Range<u64>], mut moved: Vec<Range<u64>>) -> Vec<Range<u64>> {
    moved.retain(|part| part.end - part.start <= SMALL);
    if busy.len() + moved.len() <= BUSY {
        moved.extend_from_slice(busy);
        moved.sort_unstable_by_key(|part| part.start);
    }
    moved.truncate(BUSY);
    moved
}

/// What is left of parts without others. Both come in order.
fn without(parts: Vec<Range<u64>>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut others = others.iter().peekable();
    for mut part in parts {
        while others.next_if(|other| other.end <= part.start).is_some() {}
        while let Some(other) = others.peek().filter(|other| other.start < part.end) {
            if part.start < other.start {
                left.push(part.start..other.start);
            }
            part.start = other.end.min(part.end);
            if other.end > part.end {
                break;
            }
            others.next();
        }
        if part.start < part.end {
            left.push(part);
        }
    }
    left
}

fn copy(source: &File, target: &File, part: &Range<u64>) -> io::Result<()> {
    let mut bytes = vec![0; usize::try_from(part.end - part.start).map_err(io::Error::other)?];
    source.read_exact_at(&mut bytes, part.start)?;
    target.write_all_at(&bytes, part.start)
}

/// Has everything but these parts of a file on its way to the disk below. All of it is
/// asked for first, and then waited for piece by piece: only a wish that waits leaves
/// nothing out.
#[allow(unsafe_code)]
fn write_out_around(file: &File, size: u64, parts: &[Range<u64>]) -> io::Result<()> {
    const BEGIN: u32 = libc::SYNC_FILE_RANGE_WRITE;
    const WHOLE: u32 = libc::SYNC_FILE_RANGE_WAIT_BEFORE | BEGIN | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let pieces = without(std::iter::once(0..size).collect(), parts);
    for (flags, piece) in
        [BEGIN, WHOLE].iter().flat_map(|flags| pieces.iter().map(move |piece| (flags, piece)))
    {
        let start = piece.start.try_into().map_err(io::Error::other)?;
        let length = (piece.end - piece.start).try_into().map_err(io::Error::other)?;
        // SAFETY: takes plain numbers and a descriptor that is open.
        if unsafe { libc::sync_file_range(file.as_raw_fd(), start, length, *flags) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// `struct file_clone_range` of linux/fs.h.
#[repr(C)]
struct CloneRange {
    source: i64,
    from: u64,
    length: u64,
    to: u64,
}

/// `_IOW(0x94, 13, struct file_clone_range)`.
const FICLONERANGE: libc::c_ulong = 0x4020_940D;

#[allow(unsafe_code)]
fn clone_range(source: &File, target: &File, part: Range<u64>) -> io::Result<()> {
    let source: RawFd = source.as_raw_fd();
    let request =
        CloneRange { source: source.into(), from: part.start, length: part.end - part.start, to: part.start };
    // SAFETY: reads the request, and both descriptors are open.
    let result = unsafe { libc::ioctl(target.as_raw_fd(), FICLONERANGE, &raw const request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_without_others() {
        let parts = || vec![0..10, 20..30, 40..50];
        assert_eq!(without(parts(), &[]), parts());
        assert_eq!(without(parts(), &[0..15, 15..50]), []);
        assert_eq!(without(parts(), &[0..2, 4..5, 8..25, 29..41, 60..70]), [2..4, 5..8, 25..29, 41..50]);
        assert_eq!(without(parts(), &[10..20, 30..40, 50..60]), parts());
        assert_eq!(without(parts(), &[5..45, 49..50]), [0..5, 45..49]);
    }

    #[test]
    fn large_parts_and_too_many_are_not_copied() {
        let page = |number: u64| number * 4096..(number + 1) * 4096;
        assert_eq!(
            together(&[page(1)], vec![page(0), page(2), 8192..8193 + SMALL]),
            [page(0), page(1), page(2)]
        );
        let many: Vec<_> = (0..BUSY as u64).map(page).collect();
        assert_eq!(together(&many, vec![page(5000)]), [page(5000)]);
    }
}
