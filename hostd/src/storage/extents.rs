//! What files really occupy. Clones share extents, so adding up their sizes
//! counts the same blocks again for every clone; the filesystem's own map
//! (FIEMAP) tells them apart.

use std::{fs::File, io, os::fd::AsRawFd, path::Path};

/// `_IOWR('f', 11, struct fiemap)`, of linux/fs.h.
const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
const LAST: u32 = 0x1;
/// Not on the disk yet, or somewhere that has no address.
const PLACELESS: u32 = 0x2 | 0x4 | 0x100 | 0x200;
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
struct Extent {
    start: u64,
    length: u64,
    shared: bool,
}

/// Bytes that only these files have: what removing them would give back.
pub fn own(directory: &Path) -> io::Result<u64> {
    Ok(all(directory)?.iter().filter(|extent| !extent.shared).map(|extent| extent.length).sum())
}

/// Bytes that the files of all these directories have together, each counted once.
pub fn together<'a>(directories: impl IntoIterator<Item = &'a Path>) -> io::Result<u64> {
    let mut extents = Vec::new();
    for directory in directories {
        extents.extend(all(directory)?);
    }
    Ok(union(extents))
}

fn all(directory: &Path) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match File::open(&path) {
            Ok(file) if file.metadata()?.is_file() => map(&file, &mut extents)?,
            Ok(_) => {}
            // Gone since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
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
        for raw in found.iter().filter(|raw| raw.flags & PLACELESS == 0) {
            into.push(Extent { start: raw.physical, length: raw.length, shared: raw.flags & SHARED != 0 });
        }
        match found.last() {
            Some(last) if last.flags & LAST == 0 => start = last.logical + last.length,
            _ => return Ok(()),
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
        Extent { start, length, shared: false }
    }

    #[test]
    fn what_is_shared_counts_once() {
        assert_eq!(union(vec![]), 0);
        assert_eq!(union(vec![extent(10, 5), extent(0, 5)]), 10);
        assert_eq!(union(vec![extent(0, 10), extent(0, 10)]), 10);
        assert_eq!(union(vec![extent(0, 10), extent(5, 10), extent(7, 1)]), 15);
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
        let sizes = own(&directory).and_then(|own| Ok((own, together([directory.as_path()])?)));
        std::fs::remove_dir_all(&directory).unwrap();
        match sizes {
            Ok(sizes) => assert_eq!(sizes, (1 << 20, 1 << 20)),
            // The tests' own filesystem may have no map; the pool's has.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
    }
}
