//! The files of a log: their names, their order, and the head.

use super::{
    error::{AuditError, FileContext},
    line::{self, Unreadable},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};

pub const PUBLIC_KEY: &str = "public.key";
/// Longer than any line that is written: [`super::log`] refuses longer ones.
pub const LONGEST_LINE: usize = 64 << 10;

/// Which of the two logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Series {
    /// Logins, verbs, machines' states.
    Deeds,
    /// Decisions of the bridge.
    Egress,
}

impl Series {
    pub const ALL: [Self; 2] = [Self::Deeds, Self::Egress];

    /// As signatures name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deeds => "deeds",
            Self::Egress => "egress",
        }
    }

    /// How its files' names begin.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Deeds => "",
            Self::Egress => "egress-",
        }
    }

    pub fn path(self, directory: &Path, number: u64) -> PathBuf {
        directory.join(format!("{}{number:010}.jsonl", self.prefix()))
    }

    pub fn head_path(self, directory: &Path) -> PathBuf {
        directory.join(format!("{}head", self.prefix()))
    }

    /// The numbers of the files that are there, in order.
    pub fn list(self, directory: &Path) -> Result<Vec<u64>, AuditError> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(directory).file("list", directory)?.flatten() {
            let name = entry.file_name();
            let number =
                name.to_str().and_then(|name| name.strip_suffix(".jsonl")?.strip_prefix(self.prefix()));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// The last checkpoint, beside the files. A copy elsewhere proves what the log was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub seq: u64,
    /// Of that line itself.
    pub hash: String,
    /// When it was signed; absent in heads of versions that did not sign them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub signature: String,
}

pub fn read_head(directory: &Path, series: Series) -> Result<Option<Head>, AuditError> {
    let path = series.head_path(directory);
    match read_head_file(&path) {
        // One that does not decode was meddled with: nothing fits it.
        Err(AuditError::Head { .. }) => {
            Ok(Some(Head { seq: u64::MAX, hash: String::new(), time: None, signature: String::new() }))
        }
        Err(AuditError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// A head by its path, such as a copy that was kept elsewhere.
pub fn read_head_file(path: &Path) -> Result<Head, AuditError> {
    let bytes = fs::read(path).file("read", path)?;
    line::decode(&bytes).map_err(|unreadable| match unreadable {
        Unreadable::Damaged => AuditError::Head { path: path.to_owned() },
        Unreadable::Newer(version) => AuditError::Newer { path: path.to_owned(), version },
    })
}

/// Replaced in one step: a crash leaves the old one.
pub fn write_head(directory: &Path, series: Series, head: &Head) -> Result<(), AuditError> {
    replace(&series.head_path(directory), &line::encode(head)?)
}

pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), AuditError> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes).and_then(|()| fs::rename(&fresh, path)).file("write", path)
}
