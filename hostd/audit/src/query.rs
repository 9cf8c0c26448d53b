//! Reading back: the newest entries that fit, of both logs together, oldest of them
//! first. Files are read from their ends, and only lines that can fit are parsed.

use super::{
    backwards::Backwards,
    error::{AuditError, FileContext},
    files::Series,
    line::{self, Unreadable},
};
use berth_types::{AuditEntry, AuditEvent, MachineName, UserId};
use jiff::Timestamp;
use memchr::memmem::Finder;
use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only what is this user's business.
    pub user: Option<UserId>,
    pub machine: Option<MachineName>,
    pub since: Option<Timestamp>,
    /// Only decisions of the bridge.
    pub egress: bool,
    pub most: usize,
}

/// How far out of order times may be, in seconds: decisions are recorded when a
/// connection ends, so some are late, none by much.
const SLACK: i64 = 3_600;

/// Reads backwards and no further than it has to.
pub fn query(directory: &Path, query: &Query) -> Result<Vec<AuditEntry>, AuditError> {
    let mut logs = Vec::new();
    for series in Series::ALL {
        let mut log = Newest::of(directory, series, query)?;
        logs.push((log.next()?, log));
    }
    let mut found = Vec::new();
    while found.len() < query.most
        && let Some((newest, log)) =
            logs.iter_mut().max_by_key(|(newest, _)| newest.as_ref().map(|entry| entry.time))
        && let Some(entry) = newest.take()
    {
        found.push(entry);
        *newest = log.next()?;
    }
    found.reverse();
    // Within a log they are in the order in which they were written, which is nearly that of time.
    found.sort_by_key(|entry| entry.time);
    Ok(found)
}

/// One log's entries that fit, newest first.
struct Newest<'a> {
    query: &'a Query,
    /// Files that are still to be read; the newest is the last.
    files: Vec<PathBuf>,
    lines: Option<Backwards>,
    /// Whose lines these are.
    path: PathBuf,
    /// In every line that can fit.
    sign: Option<Finder<'static>>,
    ended: bool,
}

impl<'a> Newest<'a> {
    fn of(directory: &Path, series: Series, query: &'a Query) -> Result<Self, AuditError> {
        let numbers = match series.list(directory) {
            // Nothing was ever written.
            Err(AuditError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Vec::new()
            }
            listed => listed?,
        };
        let files = numbers.into_iter().map(|number| series.path(directory, number)).collect();
        let sign = query.user.as_ref().map(|user| Finder::new(&format!("\"user\":\"{user}\"")).into_owned());
        Ok(Self { query, files, lines: None, path: PathBuf::new(), sign, ended: false })
    }

    fn next(&mut self) -> Result<Option<AuditEntry>, AuditError> {
        while !self.ended {
            let Some(lines) = &mut self.lines else {
                self.open()?;
                continue;
            };
            let Some(line) = lines.line().map_err(AuditError::Read)? else {
                self.lines = None;
                continue;
            };
            if self.sign.as_ref().is_some_and(|sign| sign.find(line).is_none()) {
                continue;
            }
            let entry = match line::entry(line) {
                Ok(entry) => entry,
                Err(Unreadable::Newer(version)) => {
                    return Err(AuditError::Newer { path: self.path.clone(), version });
                }
                // A line that is being written, or that somebody has broken.
                Err(Unreadable::Damaged) => continue,
            };
            if self.query.since.is_some_and(|since| entry.time < since) {
                // What is before this line is older still.
                self.ended = self.query.since.is_some_and(|since| is_before(entry.time, since));
                continue;
            }
            if fits(self.query, &entry) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn open(&mut self) -> Result<(), AuditError> {
        let Some(path) = self.files.pop() else {
            self.ended = true;
            return Ok(());
        };
        let opened = fs::File::open(&path).and_then(|file| {
            let about = file.metadata()?;
            Ok((about.len(), about.modified()?, file))
        });
        match opened {
            // Its last line, and so every other, is older than what is asked for.
            Ok((_, written, _)) if self.is_too_old(written) => self.ended = true,
            Ok((length, _, file)) => (self.lines, self.path) = (Some(Backwards::new(file, length)), path),
            // Removed meanwhile, and those before it too.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.ended = true,
            Err(error) => return Err(error).file("read", &path),
        }
        Ok(())
    }

    fn is_too_old(&self, written: SystemTime) -> bool {
        let written = Timestamp::try_from(written);
        self.query.since.is_some_and(|since| written.is_ok_and(|written| is_before(written, since)))
    }
}

/// By more than lines are out of order.
fn is_before(time: Timestamp, since: Timestamp) -> bool {
    time.duration_since(since).as_secs() < -SLACK
}

fn fits(query: &Query, entry: &AuditEntry) -> bool {
    let event = &entry.event;
    query.user.as_ref().is_none_or(|user| event.user() == Some(user))
        && query.machine.as_ref().is_none_or(|machine| event.machine() == Some(machine))
        && (!query.egress || matches!(event, AuditEvent::Egress(_)))
}
