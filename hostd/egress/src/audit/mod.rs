//! The record of what was done: logins, verbs, machines' lives and every
//! decision of the bridge.
//!
//! ```text
//!   DATA/audit/0000000001.jsonl   lines of JSON; each has the hash of the one before
//!              0000000002.jsonl   the newest is written to; the oldest goes when there are too many
//!              head               the last signed line, so that a cut-off end is noticed
//!              public.key         of the key that signs
//! ```
//!
//! A line is written as soon as it is known, and now and then a checkpoint is
//! signed and everything is synced. What a crash tears off is at most the last
//! line; it is taken away, and that is recorded, at the next start. Whoever holds
//! the signing key can still write a history of their own: ship the files
//! elsewhere where that matters.

mod chain;
mod error;
mod files;
mod log;
mod query;
mod recorder;
mod verify;

pub use error::AuditError;
pub use log::{Log, Rotation};
pub use query::{Query, query};
pub use recorder::Recorder;
pub use verify::{Problem, Report, read_public_key, verify};

#[cfg(test)]
mod tests;
