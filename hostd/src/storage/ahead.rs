//! Reading a machine's memory before it asks for it.
//!
//! A clone shares blocks with its original, not the page cache: a copied machine
//! reads every page it touches from the disk, one fault after the other, on its
//! virtual CPU. Its hypervisor takes a while to start, and that is time to have
//! them read.

use rustix::{
    fs::{Advice, SeekFrom, fadvise, seek},
    io::Errno,
};
use std::{fs::File, io, num::NonZeroU64, ops::Range, path::Path};

/// As much as the kernel reads at once for a single wish.
const PIECE: u64 = 2 << 20;
/// A freshly booted machine has less than this in memory.
const MOST: u64 = 256 << 20;

/// Asks for those parts of a memory that a freshly booted machine has in use:
/// its kernel and the programs that every machine starts with.
pub fn read(memory: &Path, booted: &Path) -> io::Result<()> {
    let ranges = data(&File::open(booted)?)?;
    let file = File::open(memory)?;
    let mut left = MOST;
    for piece in ranges.into_iter().flat_map(pieces) {
        let length = piece.end - piece.start;
        let Some(rest) = left.checked_sub(length) else { break };
        left = rest;
        fadvise(&file, piece.start, NonZeroU64::new(length), Advice::WillNeed)?;
    }
    Ok(())
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
    use std::os::unix::fs::FileExt;

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
        read(&path, &path).unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_range_in_pieces_is_the_same_range() {
        assert!(pieces(0..10).eq(std::iter::once(0..10)));
        let whole = 4096..5 << 20;
        let pieces: Vec<_> = pieces(whole.clone()).collect();
        assert_eq!((pieces.first().unwrap().start, pieces.last().unwrap().end), (whole.start, whole.end));
        assert!(pieces.windows(2).all(|two| two[0].end == two[1].start));
        assert!(pieces.iter().all(|piece| piece.end - piece.start <= PIECE));
    }
}
