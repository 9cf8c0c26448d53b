//! Is the log as it was written? Finds lines that were changed, left out, added
//! or moved, and an end that was cut off.

use super::{
    chain,
    error::{AuditError, FileContext},
    files::{self, PUBLIC_KEY},
    log::CHECKPOINT_EVERY,
};
use berth_types::{AuditEntry, AuditEvent};
use ed25519_dalek::VerifyingKey;
use serde::Serialize;
use std::{fs, path::Path};

/// More would only repeat themselves.
const PROBLEMS: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub files: usize,
    pub entries: u64,
    pub checkpoints: u64,
    /// Entries behind the last checkpoint: in the chain, but not signed yet.
    pub unsigned: u64,
    /// Of a last line that is being written, or that a crash tore.
    pub torn_bytes: usize,
    pub problems: Vec<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub file: String,
    /// Counted from 1; 0: the file as a whole.
    pub line: usize,
    pub what: String,
}

/// The key that lies beside the log. One from elsewhere proves more.
pub fn read_public_key(path: &Path) -> Result<VerifyingKey, AuditError> {
    let path = if path.is_dir() { path.join(PUBLIC_KEY) } else { path.to_owned() };
    let text = fs::read_to_string(&path).file("read", &path)?;
    let bytes = chain::unhex(text.trim()).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    bytes.and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok()).ok_or(AuditError::Key { path })
}

pub fn verify(directory: &Path, key: &VerifyingKey) -> Result<Report, AuditError> {
    let numbers = files::list(directory)?;
    let head = files::read_head(directory)?;
    let mut walk = Walk { key, report: Report::default(), link: None, head, head_seen: false, oldest: 0 };
    for (place, number) in numbers.iter().enumerate() {
        let path = files::path(directory, *number);
        let before = place.checked_sub(1).and_then(|before| numbers.get(before));
        if before.is_some_and(|before| before + 1 != *number) {
            walk.problem(&path, 0, "the file before it is missing");
        }
        let bytes = fs::read(&path).file("read", &path)?;
        walk.file(&path, &bytes, *number == 1, place + 1 == numbers.len());
        walk.report.files += 1;
    }
    walk.end(directory, numbers.first().copied());
    Ok(walk.report)
}

struct Walk<'a> {
    key: &'a VerifyingKey,
    report: Report,
    /// What the next line must say: its number and the hash of the last.
    link: Option<(u64, String)>,
    head: Option<files::Head>,
    head_seen: bool,
    /// The oldest file, as the last checkpoint has it.
    oldest: u64,
}

impl Walk<'_> {
    fn file(&mut self, path: &Path, bytes: &[u8], first: bool, last: bool) {
        if first && self.link.is_none() {
            self.link = Some((0, chain::GENESIS.to_owned()));
        }
        let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        // Behind the last line's end there is nothing, or half a line.
        let torn = lines.pop().unwrap_or_default();
        if !torn.is_empty() {
            if last {
                self.report.torn_bytes = torn.len();
            } else {
                self.problem(path, lines.len() + 1, "the line has no end");
            }
        }
        for (at, line) in lines.into_iter().enumerate() {
            self.line(path, at + 1, line);
        }
    }

    fn line(&mut self, path: &Path, at: usize, line: &[u8]) {
        let hash = chain::hash(line);
        let Ok(entry) = serde_json::from_slice::<AuditEntry>(line) else {
            self.problem(path, at, "it does not read as an entry: it was changed");
            self.link = self.link.take().map(|(seq, _)| (seq + 1, hash));
            return;
        };
        if let Some((seq, prev)) = &self.link {
            if entry.prev != *prev {
                self.problem(
                    path,
                    at,
                    "it does not follow the line before: one of the two was changed, moved or left out",
                );
            } else if entry.seq != *seq {
                self.problem(path, at, "its number is not the next one");
            }
        }
        self.report.entries += 1;
        self.report.unsigned += 1;
        if let AuditEvent::Checkpoint { oldest, .. } = &entry.event {
            if chain::is_signed(self.key, &entry) {
                self.report.checkpoints += 1;
                self.report.unsigned = 0;
                self.oldest = *oldest;
            } else {
                self.problem(path, at, "the checkpoint's signature is not by this key");
            }
        }
        if self.report.unsigned == 2 * CHECKPOINT_EVERY {
            self.problem(path, at, "no checkpoint for far too long: they were taken out");
        }
        self.head_seen |= self.head.as_ref().is_some_and(|head| (head.seq, &head.hash) == (entry.seq, &hash));
        self.link = Some((entry.seq + 1, hash));
    }

    fn end(&mut self, directory: &Path, first: Option<u64>) {
        let Some(first) = first else { return };
        if self.oldest > 0 && first > self.oldest {
            self.problem(&files::path(directory, self.oldest), 0, "the file is missing");
        }
        match &self.head {
            Some(_) if !self.head_seen => {
                self.problem(
                    directory,
                    0,
                    "the end of the log was cut off: the last signed line is not there",
                );
            }
            None if self.report.checkpoints > 0 => {
                self.problem(directory, 0, "'head' is missing: the log's end may have been cut off");
            }
            _ => {}
        }
    }

    fn problem(&mut self, path: &Path, line: usize, what: &str) {
        if self.report.problems.len() < PROBLEMS {
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            self.report.problems.push(Problem { file, line, what: what.to_owned() });
        }
    }
}
