//! Formats of what hostd keeps: which version a record has, and what is done with another.
//!
//! Every record is a JSON object with a `format_version`. One without is version 1, which is
//! how everything was written before there were versions. Version 1 is read and written
//! again as the current one; a version that this build does not know is refused, and its
//! bytes stay as they are. Fields that this build does not know survive (`Unknown`).
//! docs/upgrading.md has the rules for a change.

mod signed;
#[cfg(test)]
mod tests;
mod v1;

pub use signed::{Kind, Signer, unverified};

use crate::error::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Of every record and every signed file that this build writes. A build reads all up to
/// its own.
pub const FORMAT_VERSION: u64 = 2;

const VERSION: &str = "format_version";
/// What builds of version 1 call it, and require. Written until version 3, so that they
/// still read what the store has; nothing reads it.
const GENERATION: &str = "generation";

/// Why a record cannot be used. None of it repeats what somebody may have written there.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unreadable {
    #[error("it does not decode")]
    Damaged,
    #[error("it is not signed by this installation")]
    Unsigned,
    #[error("it has format version {0}, which needs a newer berth: this one reads up to {FORMAT_VERSION}")]
    Newer(u64),
}

#[derive(Serialize)]
struct Versioned<'a, T> {
    format_version: u64,
    generation: u16,
    #[serde(flatten)]
    record: &'a T,
}

/// A record with its version, as it is written.
pub fn encode<T: Serialize>(what: &'static str, record: &T) -> Result<String> {
    let versioned = Versioned { format_version: FORMAT_VERSION, generation: 1, record };
    serde_json::to_string(&versioned).map_err(|source| Error::Record { what, source })
}

/// A record of any version up to the current one.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unreadable> {
    let record = parse(bytes)?;
    known_version(&record)?;
    from_fields(record)
}

/// Refuses a record that is newer than this build. Nothing else is looked at.
pub fn check(bytes: &[u8]) -> Result<(), Unreadable> {
    known_version(&parse(bytes)?).map(drop)
}

fn known_version(record: &Value) -> Result<u64, Unreadable> {
    match version_of(record)? {
        version if version > FORMAT_VERSION => Err(Unreadable::Newer(version)),
        version => Ok(version),
    }
}

fn version_of(record: &Value) -> Result<u64, Unreadable> {
    match record.get(VERSION) {
        None => Ok(1),
        Some(version) => version.as_u64().ok_or(Unreadable::Damaged),
    }
}

fn parse(bytes: &[u8]) -> Result<Value, Unreadable> {
    serde_json::from_slice(bytes).map_err(damaged)
}

fn from_fields<T: DeserializeOwned>(mut record: Value) -> Result<T, Unreadable> {
    if let Some(fields) = record.as_object_mut() {
        // Written anew with the record; else they would be among the unknown fields, too.
        fields.remove(VERSION);
        fields.remove(GENERATION);
    }
    serde_json::from_value(record).map_err(damaged)
}

fn damaged(error: serde_json::Error) -> Unreadable {
    tracing::debug!(%error, "a record does not decode");
    Unreadable::Damaged
}
