//! The files of a log: their names, their order, and a torn last line.

use super::error::{AuditError, FileContext};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

const HEAD: &str = "head";
pub const PUBLIC_KEY: &str = "public.key";
/// Longer than any line: entries are bounded, for what machines say is cut.
const LONGEST_LINE: u64 = 64 << 10;

/// The last checkpoint, beside the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub seq: u64,
    /// Of that line itself.
    pub hash: String,
}

pub fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:010}.jsonl"))
}

/// The numbers of the files that are there, in order.
pub fn list(directory: &Path) -> Result<Vec<u64>, AuditError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory).file("list", directory)?.flatten() {
        let name = entry.file_name();
        let stem = name.to_str().and_then(|name| name.strip_suffix(".jsonl"));
        numbers.extend(stem.and_then(|stem| stem.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The last whole line, and how many bytes whole lines take.
pub fn last_line(path: &Path) -> Result<(Vec<u8>, u64), AuditError> {
    let mut file = fs::File::open(path).file("open", path)?;
    let length = file.metadata().file("read", path)?.len();
    let start = length.saturating_sub(2 * LONGEST_LINE);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(start)).and_then(|_| file.read_to_end(&mut tail)).file("read", path)?;
    let Some(end) = tail.iter().rposition(|byte| *byte == b'\n') else { return Ok((Vec::new(), 0)) };
    let whole = tail.get(..end).unwrap_or_default();
    let begin = whole.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = whole.get(begin..).unwrap_or_default().to_vec();
    Ok((line, start + end as u64 + 1))
}

pub fn read_head(directory: &Path) -> Result<Option<Head>, AuditError> {
    let path = directory.join(HEAD);
    match fs::read(&path) {
        // One that does not decode was meddled with: nothing fits it.
        Ok(bytes) => {
            let broken = Head { seq: u64::MAX, hash: String::new() };
            Ok(Some(serde_json::from_slice(&bytes).unwrap_or(broken)))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).file("read", &path),
    }
}

/// Replaced in one step: a crash leaves the old one.
pub fn write_head(directory: &Path, head: &Head) -> Result<(), AuditError> {
    let bytes = serde_json::to_vec(head).map_err(AuditError::Encode)?;
    replace(&directory.join(HEAD), &bytes)
}

pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), AuditError> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes).and_then(|()| fs::rename(&fresh, path)).file("write", path)
}
