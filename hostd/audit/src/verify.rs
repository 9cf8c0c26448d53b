//! Is the log as it was written? Finds lines that were changed, left out, added
//! or moved, and an end that was cut off.

use super::{
    chain::{self, Signed},
    error::{AuditError, FileContext},
    files::{self, Head, PUBLIC_KEY, Series},
    line::{self, Unreadable},
    log::CHECKPOINT_EVERY,
};
use berth_types::AuditEvent;
use ed25519_dalek::VerifyingKey;
use jiff::Timestamp;
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
    /// When the newest head was signed. What was cut off since the log had a signed head
    /// is found; a log and a head that are both as old as this are not told from an old copy.
    pub signed: Option<Timestamp>,
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

/// `kept` are heads of these logs that were kept elsewhere.
pub fn verify(directory: &Path, key: &VerifyingKey, kept: &[Head]) -> Result<Report, AuditError> {
    let mut report = Report::default();
    let mut known = vec![false; kept.len()];
    let mut signs_time = false;
    for series in Series::ALL {
        let numbers = series.list(directory)?;
        let mut heads: Vec<Awaited> = Vec::new();
        if let Some(head) = files::read_head(directory, series)? {
            heads.push(Awaited::new(head, None));
        }
        for (place, head) in kept.iter().enumerate() {
            if chain::is_head_signed(key, series, head) {
                known.iter_mut().skip(place).take(1).for_each(|known| *known = true);
                heads.push(Awaited::new(head.clone(), Some(place)));
            }
        }
        let mut walk = Walk {
            key,
            series,
            report: &mut report,
            link: None,
            first: None,
            heads,
            oldest: 0,
            unsigned: 0,
            checkpoints: 0,
            signs_time: false,
        };
        for (place, number) in numbers.iter().enumerate() {
            let path = series.path(directory, *number);
            let before = place.checked_sub(1).and_then(|before| numbers.get(before));
            if before.is_some_and(|before| before + 1 != *number) {
                walk.problem(&path, 0, "the file before it is missing");
            }
            let bytes = fs::read(&path).file("read", &path)?;
            walk.file(&path, &bytes, *number == 1, place + 1 == numbers.len());
            walk.report.files += 1;
        }
        walk.end(directory, numbers.first().copied());
        signs_time |= walk.signs_time;
        // Whoever signs heads begins both logs with a line.
        if signs_time && numbers.is_empty() {
            walk.problem(&series.path(directory, 1), 0, "the log is missing");
        }
    }
    for (place, _) in known.iter().enumerate().filter(|(_, known)| !**known) {
        let what = format!("the kept head number {} is not signed by this key", place + 1);
        report.problems.push(Problem { file: String::new(), line: 0, what });
    }
    Ok(report)
}

/// A line that has to be there.
struct Awaited {
    head: Head,
    /// Which of the heads that were kept elsewhere it is; `None`: the one beside the log.
    kept: Option<usize>,
    seen: bool,
}

impl Awaited {
    fn new(head: Head, kept: Option<usize>) -> Self {
        Self { head, kept, seen: false }
    }
}

struct Walk<'a> {
    key: &'a VerifyingKey,
    series: Series,
    report: &'a mut Report,
    /// What the next line must say: its number and the hash of the last.
    link: Option<(u64, String)>,
    /// The number of the first line that is there.
    first: Option<u64>,
    heads: Vec<Awaited>,
    /// The oldest file, as the last checkpoint has it.
    oldest: u64,
    /// Of this log.
    unsigned: u64,
    checkpoints: u64,
    /// A checkpoint of a version that signs heads was seen.
    signs_time: bool,
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
        let entry = match line::entry(line) {
            Ok(entry) => entry,
            Err(unreadable) => {
                self.unreadable(path, at, line, unreadable);
                self.link = self.link.take().map(|(seq, _)| (seq + 1, hash));
                return;
            }
        };
        self.follows(path, at, entry.seq, &entry.prev);
        self.first.get_or_insert(entry.seq);
        self.report.entries += 1;
        self.unsigned += 1;
        if let AuditEvent::Checkpoint { oldest, .. } = &entry.event {
            if let Some(signed) = chain::signed(self.key, self.series, &entry) {
                self.checkpoints += 1;
                self.unsigned = 0;
                self.oldest = *oldest;
                self.signs_time |= signed == Signed::PlaceAndTime;
            } else {
                self.problem(path, at, "the checkpoint's signature is not by this key");
            }
        }
        if self.unsigned == 2 * CHECKPOINT_EVERY {
            self.problem(path, at, "no checkpoint for far too long: they were taken out");
        }
        for awaited in &mut self.heads {
            awaited.seen |= (awaited.head.seq, &awaited.head.hash) == (entry.seq, &hash);
        }
        self.link = Some((entry.seq + 1, hash));
    }

    fn follows(&mut self, path: &Path, at: usize, number: u64, before: &str) {
        let Some((seq, prev)) = &self.link else { return };
        if before != prev {
            let what = "it does not follow the line before: one of the two was changed, moved or left out";
            self.problem(path, at, what);
        } else if number != *seq {
            self.problem(path, at, "its number is not the next one");
        }
    }

    /// A newer line can be in its place; what it says, signatures too, this build cannot check.
    fn unreadable(&mut self, path: &Path, at: usize, line: &[u8], unreadable: Unreadable) {
        let place = line::place(line);
        match (unreadable, place) {
            (Unreadable::Newer(version), Some(place)) => {
                let what = format!(
                    "it has format version {version}, and this berth reads up to {}: verify it with the newer one",
                    line::FORMAT_VERSION
                );
                self.problem(path, at, &what);
                self.follows(path, at, place.seq, &place.prev);
                self.first.get_or_insert(place.seq);
            }
            _ => self.problem(path, at, "it does not read as an entry: it was changed"),
        }
    }

    fn end(&mut self, directory: &Path, first: Option<u64>) {
        self.report.checkpoints += self.checkpoints;
        self.report.unsigned += self.unsigned;
        let place = self.series.head_path(directory);
        let beside = self.heads.iter().find(|awaited| awaited.kept.is_none());
        let signed = beside.is_some_and(|it| chain::is_head_signed(self.key, self.series, &it.head));
        match beside.map(|awaited| (awaited.seen, awaited.head.time)) {
            None if self.checkpoints > 0 => {
                self.problem(&place, 0, "it is missing: the log's end may have been cut off");
            }
            // Before heads were signed.
            Some((true, None)) if !self.signs_time => {}
            Some((true, _)) if !signed => self.problem(&place, 0, "it is not signed by this key"),
            Some((true, time)) => self.report.signed = self.report.signed.max(time),
            Some((false, _)) => {
                self.problem(
                    directory,
                    0,
                    "the end of the log was cut off: the last signed line is not there",
                );
            }
            None => {}
        }
        let mut missing = Vec::new();
        for awaited in self.heads.iter().filter(|awaited| !awaited.seen) {
            // Lines before the first that is there were put aside with their file.
            let gone = self.first.is_some_and(|first| awaited.head.seq < first);
            missing.extend(awaited.kept.filter(|_| !gone));
        }
        for number in missing {
            let what = format!("the line of the kept head number {} is not there", number + 1);
            self.problem(directory, 0, &what);
        }
        if first.is_some_and(|first| self.oldest > 0 && first > self.oldest) {
            self.problem(&self.series.path(directory, self.oldest), 0, "the file is missing");
        }
    }

    fn problem(&mut self, path: &Path, line: usize, what: &str) {
        if self.report.problems.len() < PROBLEMS {
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            self.report.problems.push(Problem { file, line, what: what.to_owned() });
        }
    }
}
