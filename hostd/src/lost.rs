//! What a start could not place: moved aside with the reason, never deleted.
//!
//! ```text
//!   POOL/lost/machine-ID/    note.json  files   a machine's directory
//!   POOL/lost/snapshot-ID/   note.json  files   a saved state's directory
//!   DATA/lost/mirror-NAME/   note.json  files   a mirror that cannot be believed
//! ```
//!
//! Each is moved by a rename on its own filesystem, after its note is on the disk. Only the
//! operator deletes it, or gives it back (`berth lost`).

use crate::{
    error::{Error, FileContext, Result},
    storage::{replace, sync_directory},
};
use berth_types::{LostKind, MachineId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

const NOTE: &str = "note.json";
const FILES: &str = "files";

/// Why something is here, beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub format_version: u32,
    pub kind: LostKind,
    /// What it was called where it was: a machine's or a snapshot's id, or a file's name.
    pub name: String,
    pub reason: String,
    pub at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub id: String,
    pub note: Note,
    /// Where it is now.
    pub files: PathBuf,
}

/// Both places. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Lost {
    pool: PathBuf,
    data: PathBuf,
}

impl Lost {
    pub fn new(pool: &Path, data: &Path) -> Self {
        Self { pool: pool.join("lost"), data: data.join("lost") }
    }

    /// Moves something aside, and says so in the log.
    pub fn put(&self, kind: LostKind, name: &str, from: &Path, reason: &str) -> Result<Entry> {
        let place = self.place(kind);
        let make = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        make(place).file("create", place)?;
        let first = format!("{kind}-{name}");
        let further = (2u32..).map(|number| format!("{first}.{number}"));
        let is_free = |id: &String| !place.join(id).join(FILES).exists();
        let id = std::iter::once(first.clone()).chain(further).find(is_free).unwrap_or(first);
        let entry = place.join(&id);
        make(&entry).file("create", &entry)?;
        let (name, reason) = (name.to_owned(), reason.to_owned());
        let note = Note { format_version: 1, kind, name, reason, at: Timestamp::now() };
        let bytes =
            serde_json::to_vec_pretty(&note).map_err(|source| Error::Record { what: "a note", source })?;
        replace(&entry.join(NOTE), &bytes)?;
        sync_directory(&entry)?;
        sync_directory(place)?;
        let files = entry.join(FILES);
        fs::rename(from, &files).file("move aside", from)?;
        sync_directory(&entry)?;
        tracing::error!(entry = id, from = %from.display(), reason = note.reason,
            "moved aside: see 'berth lost show'");
        Ok(Entry { id, note, files })
    }

    fn place(&self, kind: LostKind) -> &Path {
        match kind {
            LostKind::Machine | LostKind::Snapshot => &self.pool,
            LostKind::Mirror => &self.data,
        }
    }

    /// Oldest first.
    pub fn all(&self) -> Vec<Entry> {
        let places = [&self.pool, &self.data];
        let found = places.iter().flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
        let mut all: Vec<Entry> = found.filter_map(|entry| read(&entry.path())).collect();
        all.sort_by(|one, other| (one.note.at, &one.id).cmp(&(other.note.at, &other.id)));
        all
    }

    pub fn get(&self, id: &str) -> Option<Entry> {
        self.all().into_iter().find(|entry| entry.id == id)
    }

    /// The machines whose directories are here: what they slept in is still needed.
    pub fn machines(&self) -> Vec<MachineId> {
        let all = self.all().into_iter();
        let machines = all.filter(|entry| entry.note.kind == LostKind::Machine);
        machines.filter_map(|entry| entry.note.name.parse().ok()).collect()
    }

    /// For good. What it was is decided by the operator.
    pub fn remove(&self, entry: &Entry) -> Result<()> {
        let path = self.place(entry.note.kind).join(&entry.id);
        fs::remove_dir_all(&path).file("remove", &path)
    }
}

/// `None`: nothing was moved there yet, or it is none of ours.
fn read(path: &Path) -> Option<Entry> {
    let note = serde_json::from_slice(&fs::read(path.join(NOTE)).ok()?).ok()?;
    let files = path.join(FILES);
    let id = path.file_name()?.to_str()?.to_owned();
    files.symlink_metadata().is_ok().then_some(Entry { id, note, files })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Scratch;

    #[test]
    fn what_is_moved_aside_is_listed_with_its_reason_until_it_is_removed() {
        let scratch = Scratch::new();
        let lost = Lost::new(&scratch.path().join("pool"), scratch.path());
        let id = MachineId::random();
        for text in ["first", "second"] {
            let from = scratch.path().join("machine");
            fs::create_dir(&from).unwrap();
            fs::write(from.join("disk"), text).unwrap();
            lost.put(LostKind::Machine, id.as_str(), &from, text).unwrap();
            assert!(!from.exists());
        }
        let from = scratch.path().join("u.json");
        fs::write(&from, "{").unwrap();
        lost.put(LostKind::Mirror, "u.json", &from, "it does not decode").unwrap();
        let all = lost.all();
        let reasons: Vec<_> = all.iter().map(|entry| entry.note.reason.as_str()).collect();
        assert_eq!(reasons, ["first", "second", "it does not decode"]);
        assert_eq!(fs::read(all[1].files.join("disk")).unwrap(), b"second");
        assert_eq!(lost.machines(), [id.clone(), id]);
        lost.remove(&lost.get(&all[0].id).unwrap()).unwrap();
        assert_eq!(lost.all().len(), 2);
        assert!(lost.get("..").is_none() && lost.get("machine-").is_none());
    }
}
