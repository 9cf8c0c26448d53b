//! The form of a line, and of a head: JSON with a `format_version`. Heads and checkpoints
//! have one always. A line without one means what it meant in version 1: to say it in each
//! would push old lines out earlier. A change of what a line means has to write it.
//! Hashes and signatures are over what is in the file, whatever its version.

use super::error::AuditError;
use berth_types::{AuditEntry, AuditEvent};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// What is written; all up to it are read.
pub const FORMAT_VERSION: u64 = 2;

/// Why something of the log does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    Damaged,
    Newer(u64),
}

#[derive(Serialize)]
struct Versioned<'a, T> {
    format_version: u64,
    #[serde(flatten)]
    what: &'a T,
}

#[derive(Deserialize)]
struct Version {
    format_version: Option<u64>,
}

/// Where a line says that it stands in the chain, in every version.
#[derive(Debug, Deserialize)]
pub struct Place {
    pub seq: u64,
    pub prev: String,
}

pub fn encode<T: Serialize>(what: &T) -> Result<Vec<u8>, AuditError> {
    serde_json::to_vec(&Versioned { format_version: FORMAT_VERSION, what }).map_err(AuditError::Encode)
}

pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unreadable> {
    let read = serde_json::from_slice(bytes);
    // A newer one may read, and mean something else.
    match serde_json::from_slice(bytes) {
        Ok(Version { format_version: Some(version) }) if version > FORMAT_VERSION => {
            Err(Unreadable::Newer(version))
        }
        Ok(_) => read.map_err(|_| Unreadable::Damaged),
        Err(_) => Err(Unreadable::Damaged),
    }
}

/// A line as it is written, but for its end.
pub fn encode_entry(entry: &AuditEntry) -> Result<Vec<u8>, AuditError> {
    match entry.event {
        AuditEvent::Checkpoint { .. } => encode(entry),
        _ => serde_json::to_vec(entry).map_err(AuditError::Encode),
    }
}

/// One of the log's lines.
pub fn entry(line: &[u8]) -> Result<AuditEntry, Unreadable> {
    decode(line)
}

pub fn place(line: &[u8]) -> Option<Place> {
    serde_json::from_slice(line).ok()
}

#[cfg(test)]
mod tests {
    use crate::{AuditError, Log, Query, Rotation, Series, query, read_public_key, verify};
    use berth_types::{AuditEvent, UserId};
    use ed25519_dalek::SigningKey;
    use jiff::Timestamp;
    use std::{fs, path::PathBuf, time::Duration};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            Self(std::env::temp_dir().join(format!("berth-audit-line-{}", UserId::random())))
        }

        fn open(&self, series: Series) -> Result<Log, AuditError> {
            let rotation = Rotation { bytes: 1 << 20, keep: 3, keep_for: Duration::ZERO };
            Log::open(&self.0, series, rotation, SigningKey::from_bytes(&[7; 32]))
        }

        /// Both logs, with a checkpoint each.
        fn filled(self) -> Self {
            for series in Series::ALL {
                let mut log = self.open(series).unwrap();
                log.append(Timestamp::now(), started()).unwrap();
                log.checkpoint().unwrap();
            }
            self
        }

        fn log(&self) -> PathBuf {
            self.0.join("0000000001.jsonl")
        }

        fn edit(&self, from: &str, to: &str, times: usize) {
            let text = fs::read_to_string(self.log()).unwrap();
            assert!(text.contains(from), "{text}");
            fs::write(self.log(), text.replacen(from, to, times)).unwrap();
        }

        fn problems(&self) -> Vec<String> {
            let report = verify(&self.0, &read_public_key(&self.0).unwrap(), &[]).unwrap();
            report.problems.into_iter().map(|problem| problem.what).collect()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn started() -> AuditEvent {
        AuditEvent::Started { version: "1".into() }
    }

    #[test]
    fn a_checkpoint_and_a_head_have_a_version() {
        let scratch = Scratch::new().filled();
        let text = fs::read_to_string(scratch.log()).unwrap();
        let begins = [r#"{"seq":0,"#, r#"{"format_version":2,"seq":1,"#];
        assert!(text.lines().zip(begins).all(|(line, begins)| line.starts_with(begins)), "{text}");
        assert!(fs::read_to_string(scratch.0.join("head")).unwrap().starts_with(r#"{"format_version":2,"#));
        assert_eq!(scratch.problems(), [""; 0]);
        // The version is in the chain as everything is.
        scratch.edit(r#"{"format_version":2,"seq":1"#, r#"{"seq":1"#, 1);
        assert_ne!(scratch.problems(), [""; 0]);
    }

    #[test]
    fn a_log_that_ends_with_a_newer_line_is_neither_gone_on_with_nor_read() {
        let scratch = Scratch::new().filled();
        scratch.edit(r#"{"format_version":2,"seq":1"#, r#"{"format_version":99,"seq":1"#, 1);
        let bytes = fs::read(scratch.log()).unwrap();
        for refused in [
            scratch.open(Series::Deeds).map(drop),
            query(&scratch.0, &Query { most: 9, ..Query::default() }).map(drop),
        ] {
            let line = refused.unwrap_err().to_string();
            let says =
                "0000000001.jsonl has format version 99, and this berth reads up to 2: start the newer";
            assert!(line.contains(says), "{line}");
        }
        assert_eq!(fs::read(scratch.log()).unwrap(), bytes);
        assert!(scratch.open(Series::Egress).is_ok(), "the other log is not concerned");
    }

    /// It may be as it was written: that it was changed is not said of it.
    #[test]
    fn a_newer_line_is_not_taken_for_one_that_was_changed() {
        let scratch = Scratch::new().filled();
        let newer = r#"{"format_version":99,"kind":"of another time","seq":"#;
        scratch.edit(r#"{"seq":"#, newer, 1);
        let problems = scratch.problems();
        assert!(
            problems[0].contains("format version 99") && problems[0].contains("newer one"),
            "{problems:?}"
        );
        assert!(!problems[0].contains("changed"), "{problems:?}");
    }

    #[test]
    fn a_newer_head_is_not_written_over() {
        let scratch = Scratch::new().filled();
        let (head, newer) = (scratch.0.join("head"), br#"{"format_version":99,"root":"x"}"#);
        fs::write(&head, newer).unwrap();
        let refused = scratch.open(Series::Deeds).unwrap_err();
        assert!(matches!(refused, AuditError::Newer { version: 99, .. }), "{refused}");
        assert!(verify(&scratch.0, &read_public_key(&scratch.0).unwrap(), &[]).is_err());
        assert_eq!(fs::read(&head).unwrap(), newer);
    }
}
