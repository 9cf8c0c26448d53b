//! The record of what was done: logins, verbs, machines' lives and every
//! decision of the bridge.
//!
//! ```text
//!   DATA/audit/0000000001.jsonl          logins, verbs, machines' states
//!              egress-0000000001.jsonl   decisions of the bridge
//!              head, egress-head         the last signed line of each, signed with a time
//!              public.key                of the key that signs
//! ```
//!
//! There are two logs, so that what machines send cannot push logins out. Each is
//! a chain of its own: lines of JSON, each with the hash of the one before. The
//! newest file is written to; the oldest goes when there are too many and it is
//! old enough. A line is written as soon as it is known, unless the same user
//! causes so many of its kind that they are counted instead ([`throttle`]). Now and
//! then a checkpoint is signed and everything is synced. What a crash tears off is
//! at most the last line; it is taken away, and that is recorded, at the next start.
//! Whoever holds the signing key can still write a history of their own: keep
//! copies of the heads elsewhere where that matters.

mod backwards;
mod chain;
mod error;
mod files;
mod line;
mod log;
mod mend;
mod query;
mod recorder;
mod throttle;
mod verify;

pub use error::AuditError;
pub use files::{Head, Series, read_head_file};
pub use log::{Log, Rotation};
pub use query::{Query, query};
pub use recorder::{BusyReading, Recorder};
pub use verify::{Problem, Report, read_public_key, verify};

#[cfg(test)]
mod tests;
