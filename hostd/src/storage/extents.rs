//! Where files are, by the filesystem's own map (FIEMAP): what they really occupy, and
//! what of them is no longer where it was. Clones share extents, so adding up their
//! sizes would count the same blocks again for every clone.

use berth_sys::{Access, Directory, Expected, Owner};
use std::{ffi::OsStr, fs::File, io, ops::Range, os::fd::AsRawFd, os::unix::ffi::OsStrExt as _};

/// `_IOWR('f', 11, struct fiemap)`, of linux/fs.h.
const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
const LAST: u32 = 0x1;
/// Not on the disk yet, or somewhere that has no address.
const PLACELESS: u32 = 0x2 | 0x4 | 0x100 | 0x200;
/// Room that nothing was written to: a hole, to whoever reads it.
const UNWRITTEN: u32 = 0x800;
const SHARED: u32 = 0x2000;
/// Extents asked for at once.
const BATCH: usize = 256;

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Raw; BATCH],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Raw {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// In the file.
    pub(super) at: u64,
    /// On the device.
    start: u64,
    pub(super) length: u64,
    shared: bool,
    written: bool,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.at.saturating_add(self.length)
    }

    /// Less its first bytes, if any are left.
    fn skip(self, bytes: u64) -> Option<Self> {
        let length = self.length.checked_sub(bytes).filter(|length| *length > 0)?;
        Some(Self { at: self.at + bytes, start: self.start + bytes, length, ..self })
    }
}

/// Bytes that only these files have: what removing them would give back.
pub fn own(directory: &Directory) -> io::Result<u64> {
    Ok(all(directory)?.iter().filter(|extent| !extent.shared).map(|extent| extent.length).sum())
}

/// Bytes that the files of all these directories have together, each counted once.
pub fn together<'a>(directories: impl IntoIterator<Item = &'a Directory>) -> io::Result<u64> {
    let mut extents = Vec::new();
    for directory in directories {
        extents.extend(all(directory)?);
    }
    Ok(union(extents))
}

fn all(directory: &Directory) -> io::Result<Vec<Extent>> {
    // Nothing is read of them: whose they are does not matter.
    let any = Expected::of(Owner::Anyone).with_links(u64::MAX);
    let mut extents = Vec::new();
    for name in directory.names()? {
        match directory.file(OsStr::from_bytes(name.to_bytes()), Access::Read, any) {
            Ok(file) => map(&file, &mut extents)?,
            // Gone since it was listed, or no file.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(extents)
}

fn union(mut extents: Vec<Extent>) -> u64 {
    extents.sort_unstable_by_key(|extent| extent.start);
    let (mut total, mut end) = (0, 0);
    for extent in extents {
        let stop = extent.start.saturating_add(extent.length);
        total += stop.saturating_sub(extent.start.max(end));
        end = end.max(stop);
    }
    total
}

/// Where a file's data is now.
pub(super) fn written(file: &File) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    map(file, &mut extents)?;
    extents.retain(|extent| extent.written);
    Ok(extents)
}

/// A file's extents in order. What has no place yet is left out.
fn map(file: &File, into: &mut Vec<Extent>) -> io::Result<()> {
    let mut start = 0;
    loop {
        let mut request = Request {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: BATCH as u32,
            reserved: 0,
            extents: [Raw::default(); BATCH],
        };
        fiemap(file, &mut request)?;
        let found = request.extents.get(..request.mapped as usize).unwrap_or_default();
        into.extend(found.iter().filter(|raw| raw.flags & PLACELESS == 0).map(|raw| Extent {
            at: raw.logical,
            start: raw.physical,
            length: raw.length,
            shared: raw.flags & SHARED != 0,
            written: raw.flags & UNWRITTEN == 0,
        }));
        match found.last() {
            Some(last) if last.flags & LAST == 0 => start = last.logical + last.length,
            _ => return Ok(()),
        }
    }
}

/// Which parts of two files are not in the same place. Both come in order.
pub(super) fn differences(one: &[Extent], other: &[Extent]) -> Vec<Range<u64>> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut differs = |part: Range<u64>| match parts.last_mut() {
        Some(last) if last.end == part.start => last.end = part.end,
        _ => parts.push(part),
    };
    let (mut one, mut other) = (one.iter().copied(), other.iter().copied());
    let (mut mine, mut theirs) = (one.next(), other.next());
    loop {
        let [here, there] = [mine, theirs].map(|extent| extent.map_or(u64::MAX, |extent| extent.at));
        match (mine, theirs) {
            (Some(a), Some(b)) if here == there => {
                let length = a.length.min(b.length);
                if a.start != b.start {
                    differs(here..here + length);
                }
                (mine, theirs) =
                    (a.skip(length).or_else(|| one.next()), b.skip(length).or_else(|| other.next()));
            }
            // What comes first has no counterpart, as far as the other's beginning.
            (Some(a), _) if here < there => {
                let end = a.end().min(there);
                differs(here..end);
                mine = a.skip(end - here).or_else(|| one.next());
            }
            (_, Some(b)) => {
                let end = b.end().min(here);
                differs(there..end);
                theirs = b.skip(end - there).or_else(|| other.next());
            }
            _ => return parts,
        }
    }
}

#[allow(unsafe_code)]
fn fiemap(file: &File, request: &mut Request) -> io::Result<()> {
    // SAFETY: the kernel writes at most `count` extents behind the header, and
    // the request has room for exactly that many; the descriptor is open.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, std::ptr::from_mut(request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, length: u64) -> Extent {
        at(0, start, length)
    }

    fn at(at: u64, start: u64, length: u64) -> Extent {
        Extent { at, start, length, shared: false, written: true }
    }

    #[test]
    fn what_is_shared_counts_once() {
        assert_eq!(union(vec![]), 0);
        assert_eq!(union(vec![extent(10, 5), extent(0, 5)]), 10);
        assert_eq!(union(vec![extent(0, 10), extent(0, 10)]), 10);
        assert_eq!(union(vec![extent(0, 10), extent(5, 10), extent(7, 1)]), 15);
    }

    #[test]
    fn what_is_elsewhere_differs() {
        let before = [at(0, 100, 10), at(20, 200, 10)];
        assert_eq!(differences(&before, &before), []);
        assert_eq!(differences(&before, &[]), [0..10, 20..30]);
        assert_eq!(differences(&[], &before), [0..10, 20..30]);
        // Cut in two, and still where it was.
        assert_eq!(differences(&[at(0, 100, 4), at(4, 104, 6), at(20, 200, 10)], &before), []);
        // Its middle was written again.
        let now = [at(0, 100, 4), at(4, 300, 2), at(6, 106, 4), at(20, 400, 1), at(21, 201, 9)];
        assert_eq!(differences(&now, &before), [4..6, 20..21]);
        // A hole was written to, and what follows on both sides.
        let now = [at(0, 100, 8), at(8, 300, 14), at(22, 202, 7)];
        assert_eq!(differences(&now, &before), [8..22, 29..30]);
    }

    /// Against the same said block by block.
    #[test]
    fn every_block_that_is_elsewhere_differs_and_no_other() {
        const BLOCKS: usize = 24;
        let mut dice = 7_u64;
        let mut roll = |sides: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (dice >> 33) % sides
        };
        for _ in 0..2000 {
            let mut places = || -> [Option<u64>; BLOCKS] {
                // Runs that go on where they were, elsewhere, or not at all.
                let mut place = None;
                std::array::from_fn(|block| {
                    place = match roll(4) {
                        0 => (roll(3) > 0).then(|| roll(3) * 100 + block as u64),
                        _ => place.map(|before| before + 1),
                    };
                    place
                })
            };
            let (one, other) = (places(), places());
            let mut expected = Vec::new();
            for (block, (a, b)) in one.iter().zip(&other).enumerate() {
                if a != b {
                    expected.push(block as u64);
                }
            }
            let found = differences(&extents(&one), &extents(&other));
            assert!(found.windows(2).all(|two| two[0].end < two[1].start), "{found:?}");
            let found: Vec<u64> = found.into_iter().flatten().collect();
            assert_eq!(found, expected, "{one:?} {other:?}");
        }
    }

    fn extents(places: &[Option<u64>]) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (block, place) in (0..).zip(places) {
            match (extents.last_mut(), place) {
                (_, None) => {}
                (Some(last), Some(place)) if last.end() == block && last.start + last.length == *place => {
                    last.length += 1;
                }
                (_, Some(place)) => extents.push(at(block, *place, 1)),
            }
        }
        extents
    }

    #[test]
    fn a_request_is_as_the_kernel_lays_it_out() {
        assert_eq!(size_of::<Raw>(), 56);
        assert_eq!(size_of::<Request>(), 32 + 56 * BATCH);
    }

    #[test]
    fn a_file_occupies_what_was_written() {
        let directory = std::env::temp_dir().join(format!("berth-extents-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = File::create(directory.join("file")).unwrap();
        std::io::Write::write_all(&mut &file, &vec![7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let opened = Directory::open(&directory).unwrap();
        let sizes = own(&opened).and_then(|own| Ok((own, together([&opened])?)));
        std::fs::remove_dir_all(&directory).unwrap();
        match sizes {
            Ok(sizes) => assert_eq!(sizes, (1 << 20, 1 << 20)),
            // The tests' own filesystem may have no map; the pool's has.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
    }
}
