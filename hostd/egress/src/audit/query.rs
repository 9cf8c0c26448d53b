//! Reading back: the newest entries that fit, oldest of them first.

use super::{
    error::{AuditError, FileContext},
    files,
};
use berth_types::{AuditEntry, AuditEvent, MachineName, UserId};
use jiff::Timestamp;
use std::{fs, path::Path};

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

/// Reads backwards and no further than it has to.
pub fn query(directory: &Path, query: &Query) -> Result<Vec<AuditEntry>, AuditError> {
    let mut found = Vec::new();
    'files: for number in files::list(directory)?.into_iter().rev() {
        let path = files::path(directory, number);
        let bytes = match fs::read(&path) {
            // Rotated away meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
            read => read.file("read", &path)?,
        };
        for line in bytes.rsplit(|byte| *byte == b'\n') {
            if found.len() >= query.most {
                break 'files;
            }
            // A line that is being written, or that somebody has broken.
            let Ok(entry) = serde_json::from_slice::<AuditEntry>(line) else { continue };
            if query.since.is_some_and(|since| entry.time < since) {
                // Decisions are recorded when a connection ends: some are late, none by much.
                if query.since.is_some_and(|since| entry.time.duration_since(since).as_secs() < -SLACK) {
                    break 'files;
                }
                continue;
            }
            if fits(query, &entry) {
                found.push(entry);
            }
        }
    }
    found.reverse();
    Ok(found)
}

/// How far out of order times may be, in seconds.
const SLACK: i64 = 3_600;

fn fits(query: &Query, entry: &AuditEntry) -> bool {
    let event = &entry.event;
    query.user.as_ref().is_none_or(|user| event.user() == Some(user))
        && query.machine.as_ref().is_none_or(|machine| event.machine() == Some(machine))
        && (!query.egress || matches!(event, AuditEvent::Egress(_)))
}
