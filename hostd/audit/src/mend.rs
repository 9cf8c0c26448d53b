//! Where a log goes on after a start: behind its last whole line.
//!
//! What a crash tore off a line is cut, at most as much as a line may have. More
//! than that was not left by a crash: it is moved aside, and nothing is lost.

use super::{
    backwards::Backwards,
    chain,
    error::{AuditError, FileContext},
    files::{LONGEST_LINE, Series},
    line::{self, Unreadable},
};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

const CHUNK: usize = 64 << 10;

/// Where the chain goes on.
#[derive(Debug)]
pub struct End {
    /// Of the next line.
    pub seq: u64,
    /// The hash of the last one.
    pub prev: String,
    /// Bytes that were behind the last whole line, and are not there any more.
    pub torn: u64,
}

/// Mends the newest file, which is there, and tells how the chain goes on in it.
pub fn mend(directory: &Path, series: Series, numbers: &[u64]) -> Result<End, AuditError> {
    let mut torn = 0;
    if let Some(newest) = numbers.last() {
        torn = cut(&series.path(directory, *newest))?;
    }
    // The newest file may have no line yet: the process was killed just after it had made it.
    for number in numbers.iter().rev() {
        let path = series.path(directory, *number);
        if let Some((seq, prev)) = last_line(&path)? {
            return Ok(End { seq, prev, torn });
        }
    }
    Ok(End { seq: 0, prev: chain::GENESIS.to_owned(), torn })
}

/// Takes away what is behind the last newline, and says how much that was.
fn cut(path: &Path) -> Result<u64, AuditError> {
    let file = File::options().read(true).write(true).open(path).file("open", path)?;
    let size = file.metadata().file("read", path)?.len();
    let whole = newline_before(&file, size).file("read", path)?.map_or(0, |at| at + 1);
    let torn = size - whole;
    if torn > LONGEST_LINE as u64 {
        let aside = aside(path);
        tracing::error!(
            bytes = torn,
            aside = %aside.display(),
            "the end of the audit log is no line, and longer than one: it is moved aside"
        );
        let saved = File::create_new(&aside).and_then(|to| {
            copy(&file, whole, size, |bytes| io::Write::write_all(&mut &to, bytes))?;
            to.sync_all()
        });
        saved.file("move aside to", &aside)?;
    }
    if torn > 0 {
        file.set_len(whole).file("mend", path)?;
    }
    Ok(torn)
}

/// `0000000001.jsonl.aside-1767225600`, or the next name that is free.
fn aside(path: &Path) -> PathBuf {
    let mut second = Timestamp::now().as_second();
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".aside-{second}"));
        let place = PathBuf::from(name);
        if fs::symlink_metadata(&place).is_err() {
            return place;
        }
        second += 1;
    }
}

/// The next line's number and the hash of the last. A line that does not decode, which
/// somebody changed, counts as one: the chain goes on behind it, and `verify` points at it.
/// A log that ends with a line of a newer version is not gone on with.
fn last_line(path: &Path) -> Result<Option<(u64, String)>, AuditError> {
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (length, file) = opened.file("read", path)?;
    let Some(newline) = length.checked_sub(1) else { return Ok(None) };
    let hash = last_hash(&file, newline).file("read", path)?;
    let mut lines = Backwards::new(file, newline);
    let mut returned = 0;
    let mut seq = 0;
    while let Some(line) = lines.line().file("read", path)? {
        returned += 1;
        match line::entry(line) {
            Ok(entry) => {
                seq = entry.seq.saturating_add(returned + lines.skipped());
                break;
            }
            Err(Unreadable::Newer(version)) => {
                return Err(AuditError::Newer { path: path.to_owned(), version });
            }
            Err(Unreadable::Damaged) => {}
        }
    }
    Ok(Some((seq, hash)))
}

/// Of the last line, which ends before `newline`.
fn last_hash(file: &File, newline: u64) -> io::Result<String> {
    let start = newline_before(file, newline)?.map_or(0, |at| at + 1);
    let mut hash = Sha256::new();
    copy(file, start, newline, |bytes| {
        hash.update(bytes);
        Ok(())
    })?;
    Ok(chain::hex(&hash.finalize()))
}

/// Where the last newline before `end` is.
fn newline_before(file: &File, mut end: u64) -> io::Result<Option<u64>> {
    let mut chunk = vec![0; CHUNK];
    while end > 0 {
        let size = end.min(CHUNK as u64);
        let bytes = chunk.get_mut(..size as usize).unwrap_or_default();
        end -= size;
        file.read_exact_at(bytes, end)?;
        if let Some(at) = memchr::memrchr(b'\n', bytes) {
            return Ok(Some(end + at as u64));
        }
    }
    Ok(None)
}

fn copy(
    file: &File,
    mut start: u64,
    end: u64,
    mut to: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    while start < end {
        let size = (end - start).min(CHUNK as u64);
        let bytes = chunk.get_mut(..size as usize).unwrap_or_default();
        file.read_exact_at(bytes, start)?;
        to(bytes)?;
        start += size;
    }
    Ok(())
}
