//! Users and their keys. A user is whoever holds one of the keys.

use crate::{ByteSize, UserId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub generation: u16,
    pub id: UserId,
    /// What the operator or the first key's comment called them; for people to
    /// read, never to decide by.
    pub label: String,
    pub created: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshKey {
    /// `SHA256:…`, as `ssh-keygen -l` prints it.
    pub fingerprint: String,
    /// `ssh-ed25519 AAAA…`, without its comment.
    pub public: String,
    pub comment: String,
    pub added: Timestamp,
}

/// What one user may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    pub machines: u32,
    pub memory: ByteSize,
    pub disk: ByteSize,
}
