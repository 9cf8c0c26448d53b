//! Reading a machine's memory before it asks for it.
//!
//! A clone shares blocks with its original, not the page cache: a copied machine
//! reads every page it touches from the disk, one fault after the other, on its
//! virtual CPU. Its hypervisor takes a while to start, and that is time to have
//! them read: those that a copy was seen to touch before (`touched`), for all that a
//! booted machine has in memory is three to seven times as much, and the more the
//! larger it is.

use berth_sys::{
    Access,
    machine::{Files, RAM},
};
use rustix::{
    fs::{Advice, SeekFrom, fadvise, seek},
    io::Errno,
};
use std::{
    fmt::Write as _,
    fs::File,
    io,
    num::NonZeroU64,
    ops::Range,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::Path,
};

/// Beside a template's RAM: what of it a copy touches.
pub const TOUCHED: &str = "touched";

/// As much as the kernel reads at once for a single wish.
const PIECE: u64 = 2 << 20;
/// A freshly booted machine has less than this in memory.
const MOST: u64 = 256 << 20;

const PAGE: u64 = 4096;
/// Parts that are no further from each other are read as one.
const NEAR: u64 = 64 << 10;

/// Asks for those parts of a memory that a machine of this template needs first:
/// what a copy of it touched, or all that it had when it was booted.
pub fn read(memory: &Files, booted: &Files) -> io::Result<()> {
    let ranges = match booted.read_file(TOUCHED) {
        Ok(text) => parse(&String::from_utf8_lossy(&text)),
        Err(_) => data(&booted.open_file(RAM, Access::Read)?)?,
    };
    let file = memory.open_file(RAM, Access::Read)?;
    let mut left = MOST;
    for piece in ranges.into_iter().flat_map(pieces) {
        let length = piece.end - piece.start;
        let Some(rest) = left.checked_sub(length) else { break };
        left = rest;
        fadvise(&file, piece.start, NonZeroU64::new(length), Advice::WillNeed)?;
    }
    Ok(())
}

/// Which parts of its memory a process has touched so far, or was given with those.
/// Nothing, if it does not map that file.
pub fn touched(pid: i32, memory: &Files) -> io::Result<Vec<Range<u64>>> {
    let inode = memory.open_file(RAM, Access::Read)?.metadata()?.ino();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut ranges = Vec::new();
    for (addresses, offset) in maps.lines().filter_map(|line| mapping(line, inode, Path::new(RAM))) {
        let mut entries = vec![0; usize::try_from((addresses.end - addresses.start) / PAGE * 8).unwrap_or(0)];
        pagemap.read_exact_at(&mut entries, addresses.start / PAGE * 8)?;
        let present = entries
            .chunks_exact(8)
            .enumerate()
            .filter(|(_, entry)| entry.last().is_some_and(|byte| byte & 0x80 != 0));
        ranges.extend(present.map(|(page, _)| {
            let start = offset + page as u64 * PAGE;
            start..start + PAGE
        }));
    }
    Ok(together(ranges))
}

/// The addresses and the offset of a mapping, if it is of this file. A process in
/// another mount namespace calls it something else, but for its last name.
fn mapping(line: &str, inode: u64, file: &Path) -> Option<(Range<u64>, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let offset = fields.nth(1)?;
    let own = fields.nth(1)?.parse() == Ok(inode)
        && Path::new(fields.next()?).file_name().is_some_and(|name| Some(name) == file.file_name());
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    own.then_some((number(start)?..number(end)?, number(offset)?))
}

/// Fewer and larger ones. They come in order.
fn together(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + NEAR => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// A line each, in hexadecimal.
pub fn format(ranges: &[Range<u64>]) -> String {
    ranges.iter().fold(String::new(), |mut text, range| {
        let _ = writeln!(text, "{:x}-{:x}", range.start, range.end);
        text
    })
}

/// What is no range is left out: it would only have been faster with it.
fn parse(text: &str) -> Vec<Range<u64>> {
    let range = |line: &str| {
        let (start, end) = line.split_once('-')?;
        Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
    };
    text.lines().filter_map(range).filter(|range| range.start < range.end).collect()
}

/// What is not a hole.
fn data(file: &File) -> io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut end = 0;
    loop {
        let start = match seek(file, SeekFrom::Data(end)) {
            Err(Errno::NXIO) => return Ok(ranges),
            start => start?,
        };
        end = seek(file, SeekFrom::Hole(start))?;
        ranges.push(start..end);
    }
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    (range.start..end)
        .step_by(usize::try_from(PIECE).unwrap_or(usize::MAX))
        .map(move |start| start..(start + PIECE).min(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    #[test]
    fn what_is_near_is_one() {
        assert!(together([0..PAGE, PAGE..2 * PAGE]).into_iter().eq(iter::once(0..2 * PAGE)));
        let far = 2 * PAGE + NEAR;
        assert_eq!(together([0..PAGE, far..far + PAGE]), [0..PAGE, far..far + PAGE]);
    }

    #[test]
    fn what_was_written_down_is_read_again() {
        let ranges = [0x1000..0x3000, 0x0100_0000_0000..0x0100_0000_1000];
        assert_eq!(parse(&format(&ranges)), ranges);
        assert!(parse("1000-2000\nhalf a li").into_iter().eq(iter::once(0x1000..0x2000)));
        assert_eq!(parse("2000-1000\n-\nx-y\n"), []);
    }

    #[test]
    fn a_mapping_is_known_by_its_file() {
        let line = "7f00-8f00 rw-s 00001000 07:00 131     /jail/ram (deleted)";
        assert_eq!(mapping(line, 131, Path::new("/pool/ram")), Some((0x7f00..0x8f00, 0x1000)));
        assert_eq!(mapping(line, 132, Path::new("/pool/ram")), None);
        assert_eq!(mapping(line, 131, Path::new("/pool/disk")), None);
        assert_eq!(mapping("7f00-8f00 rw-p 00000000 00:00 0 ", 0, Path::new("ram")), None);
    }

    #[test]
    fn only_what_was_written_is_data() {
        let path = std::env::temp_dir().join(format!("berth-ahead-{}", std::process::id()));
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        assert_eq!(data(&file).unwrap(), []);
        file.write_all_at(&[1; 4096], 8 << 20).unwrap();
        file.write_all_at(&[1; 4096], (64 << 20) - 4096).unwrap();
        let found = data(&file).unwrap();
        let whole = |at: u64| found.iter().any(|range| range.start <= at && at + 4096 <= range.end);
        assert!(found.len() == 2 && whole(8 << 20) && whole((64 << 20) - 4096), "{found:?}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_range_in_pieces_is_the_same_range() {
        assert!(pieces(0..10).eq(iter::once(0..10)));
        let whole = 4096..5 << 20;
        let pieces: Vec<_> = pieces(whole.clone()).collect();
        assert_eq!((pieces.first().unwrap().start, pieces.last().unwrap().end), (whole.start, whole.end));
        assert!(pieces.windows(2).all(|two| two[0].end == two[1].start));
        assert!(pieces.iter().all(|piece| piece.end - piece.start <= PIECE));
    }
}
