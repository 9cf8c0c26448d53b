//! What ties lines together: hashes, and the signatures of checkpoints and heads.

use super::files::{Head, Series};
use berth_types::{AuditEntry, AuditEvent};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

/// What the very first line has for a predecessor.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// What a signature of a checkpoint covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    /// Its place in the chain: written before there were two logs.
    Place,
    /// Its place, its log and its time.
    PlaceAndTime,
}

/// Of a line without its end.
pub fn hash(line: &[u8]) -> String {
    hex(&Sha256::digest(line))
}

/// A checkpoint for the line that comes next.
pub fn checkpoint(
    key: &SigningKey,
    series: Series,
    (seq, prev): (u64, &str),
    oldest: u64,
    time: Timestamp,
) -> AuditEvent {
    let signature = key.sign(&checkpoint_message(series, seq, prev, oldest, time));
    AuditEvent::Checkpoint { oldest, signature: hex(&signature.to_bytes()) }
}

/// Is this entry a checkpoint that the key signed, and over what?
pub fn signed(key: &VerifyingKey, series: Series, entry: &AuditEntry) -> Option<Signed> {
    let AuditEvent::Checkpoint { oldest, signature } = &entry.event else { return None };
    let message = checkpoint_message(series, entry.seq, &entry.prev, *oldest, entry.time);
    if verifies(key, &message, signature) {
        return Some(Signed::PlaceAndTime);
    }
    let older = format!("berth audit 1\n{}\n{}\n{oldest}\n", entry.seq, entry.prev);
    (series == Series::Deeds && verifies(key, older.as_bytes(), signature)).then_some(Signed::Place)
}

/// The head that names this line.
pub fn head(key: &SigningKey, series: Series, seq: u64, hash: String, time: Timestamp) -> Head {
    let signature = hex(&key.sign(&head_message(series, seq, &hash, time)).to_bytes());
    Head { seq, hash, time: Some(time), signature }
}

/// Did the key sign this head?
pub fn is_head_signed(key: &VerifyingKey, series: Series, head: &Head) -> bool {
    head.time
        .is_some_and(|time| verifies(key, &head_message(series, head.seq, &head.hash, time), &head.signature))
}

/// `prev` stands for everything before.
fn checkpoint_message(series: Series, seq: u64, prev: &str, oldest: u64, time: Timestamp) -> Vec<u8> {
    format!("berth audit 2\n{}\n{seq}\n{prev}\n{oldest}\n{time}\n", series.name()).into_bytes()
}

fn head_message(series: Series, seq: u64, hash: &str, time: Timestamp) -> Vec<u8> {
    format!("berth audit head 1\n{}\n{seq}\n{hash}\n{time}\n", series.name()).into_bytes()
}

fn verifies(key: &VerifyingKey, message: &[u8], signature: &str) -> bool {
    let bytes = unhex(signature).and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
    bytes.is_some_and(|bytes| key.verify_strict(message, &Signature::from_bytes(&bytes)).is_ok())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
