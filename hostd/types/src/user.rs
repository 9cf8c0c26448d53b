//! Users and their keys. A user is whoever holds one of the keys.

use crate::{ByteSize, Unknown, UserId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub id: UserId,
    /// What the operator or the first key's comment called them; for people to
    /// read, never to decide by.
    pub label: String,
    pub created: Timestamp,
    /// The operator has shut the user out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<Lock>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// For the user to read; may be empty.
    pub reason: String,
    pub since: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshKey {
    /// `SHA256:…`, as `ssh-keygen -l` prints it.
    pub fingerprint: String,
    /// `ssh-ed25519 AAAA…`, without its comment.
    pub public: String,
    pub comment: String,
    pub added: Timestamp,
    /// The fingerprint of the key that added this one. Absent: the operator did,
    /// or it came with the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_by: Option<String>,
    /// From which address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_from: Option<IpAddr>,
    /// When the holder of this key was last told of keys that others added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Timestamp>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl SshKey {
    /// A key that is not added yet.
    pub fn new(fingerprint: String, public: String, comment: String) -> Self {
        let added = Timestamp::now();
        let (added_by, added_from, told, unknown) = (None, None, None, Unknown::new());
        Self { fingerprint, public, comment, added, added_by, added_from, told, unknown }
    }
}

/// What one user may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    pub machines: u32,
    pub memory: ByteSize,
    pub disk: ByteSize,
    /// Snapshots and earlier sleeps, as if they shared nothing.
    #[serde(default = "Quota::default_points")]
    pub points: ByteSize,
}

impl Quota {
    const fn default_points() -> ByteSize {
        ByteSize::gib(400)
    }
}
