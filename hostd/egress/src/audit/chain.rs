//! What ties lines together: hashes, and the signatures of checkpoints.

use berth_types::{AuditEntry, AuditEvent};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use sha2::{Digest, Sha256};

/// What the very first line has for a predecessor.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Of a line without its end.
pub fn hash(line: &[u8]) -> String {
    hex(&Sha256::digest(line))
}

/// A checkpoint for the line that comes next.
pub fn checkpoint(key: &SigningKey, seq: u64, prev: &str, oldest: u64) -> AuditEvent {
    let signature = key.sign(&message(seq, prev, oldest));
    AuditEvent::Checkpoint { oldest, signature: hex(&signature.to_bytes()) }
}

/// Is this entry a checkpoint that the key signed?
pub fn is_signed(key: &VerifyingKey, entry: &AuditEntry) -> bool {
    let AuditEvent::Checkpoint { oldest, signature } = &entry.event else { return false };
    let bytes = unhex(signature).and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
    bytes.is_some_and(|bytes| {
        let signed = message(entry.seq, &entry.prev, *oldest);
        key.verify_strict(&signed, &Signature::from_bytes(&bytes)).is_ok()
    })
}

/// `prev` stands for everything before.
fn message(seq: u64, prev: &str, oldest: u64) -> Vec<u8> {
    format!("berth audit 1\n{seq}\n{prev}\n{oldest}\n").into_bytes()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
