//! A file's lines from its end to its beginning, in little memory.

use super::files::LONGEST_LINE;
use std::{fs::File, io, os::unix::fs::FileExt};

const CHUNK: usize = 256 << 10;

/// Reads a file backwards. Lines longer than any that is written are left out.
#[derive(Debug)]
pub struct Backwards {
    file: File,
    /// Where in the file `held` begins.
    at: u64,
    /// What was read and not returned yet is `held[..end]`.
    held: Vec<u8>,
    end: usize,
    /// The rest of a line that is too long, up to the newline before it.
    skipping: bool,
    skipped: u64,
    finished: bool,
}

impl Backwards {
    /// From `end`, which is the file's length or behind a line.
    pub fn new(file: File, end: u64) -> Self {
        Self { file, at: end, held: Vec::new(), end: 0, skipping: false, skipped: 0, finished: false }
    }

    /// The line before the last one that was returned, without its end. The first
    /// one is what stands behind the last newline: nothing, or half a line.
    pub fn line(&mut self) -> io::Result<Option<&[u8]>> {
        while !self.finished {
            let unread = self.held.get(..self.end).unwrap_or_default();
            let (start, next) = match memchr::memrchr(b'\n', unread) {
                Some(newline) => (newline + 1, newline),
                None if self.at == 0 => {
                    self.finished = true;
                    (0, 0)
                }
                None => {
                    if self.end > LONGEST_LINE {
                        (self.skipping, self.end) = (true, 0);
                    }
                    self.read_more()?;
                    continue;
                }
            };
            let end = std::mem::replace(&mut self.end, next);
            if !std::mem::take(&mut self.skipping) && end - start <= LONGEST_LINE {
                return Ok(self.held.get(start..end));
            }
            self.skipped += 1;
        }
        Ok(None)
    }

    /// How many lines were left out so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn read_more(&mut self) -> io::Result<()> {
        let size = self.at.min(CHUNK as u64) as usize;
        let mut chunk = vec![0; size + self.end];
        let (fresh, old) = chunk.split_at_mut(size);
        self.file.read_exact_at(fresh, self.at - size as u64)?;
        old.copy_from_slice(self.held.get(..self.end).unwrap_or_default());
        self.at -= size as u64;
        (self.end, self.held) = (chunk.len(), chunk);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    fn lines(text: &[u8]) -> Vec<Vec<u8>> {
        let path = std::env::temp_dir().join(format!("berth-backwards-{}", berth_types::UserId::random()));
        let mut file =
            File::options().create(true).write(true).read(true).truncate(true).open(&path).unwrap();
        file.write_all(text).unwrap();
        let end = file.stream_position().unwrap();
        std::fs::remove_file(path).unwrap();
        let mut backwards = Backwards::new(file, end);
        let mut lines = Vec::new();
        while let Some(line) = backwards.line().unwrap() {
            lines.push(line.to_vec());
        }
        lines
    }

    #[test]
    fn lines_come_from_the_last_to_the_first() {
        assert_eq!(lines(b"one\ntwo\nthr"), [&b"thr"[..], b"two", b"one"]);
        assert_eq!(lines(b"one\n"), [&b""[..], b"one"]);
        assert_eq!(lines(b""), [b""]);
        let many: Vec<String> = (0..100_000).map(|number| format!("number {number}")).collect();
        let found = lines(many.join("\n").as_bytes());
        assert!(found.iter().rev().map(|line| std::str::from_utf8(line).unwrap()).eq(&many));
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out() {
        let long = "x".repeat(3 * CHUNK);
        assert_eq!(lines(format!("one\n{long}\ntwo\n").as_bytes()), [&b""[..], b"two", b"one"]);
        assert_eq!(lines(format!("{long}\ntwo\n").as_bytes()), [&b""[..], b"two"]);
        assert_eq!(lines(format!("one\n{long}").as_bytes()), [b"one"]);
    }
}
