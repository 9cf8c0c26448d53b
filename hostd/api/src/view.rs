//! What callers see. The field names are those of `--json`: stable.

use berth_types::{
    Activity, ByteSize, Failure, IdlePolicy, Labels, LostKind, MachineId, MachineName, Quota, State, UserId,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineView {
    pub name: MachineName,
    pub id: MachineId,
    pub state: State,
    pub image: String,
    pub cpus: u32,
    pub memory: ByteSize,
    pub disk: ByteSize,
    /// What its disk occupies in the pool now. Only in `info`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_used: Option<ByteSize>,
    /// What it and its points in time occupy there together, memory included
    /// and what they share counted once. Only in `info`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_used: Option<ByteSize>,
    pub labels: Labels,
    pub created: Timestamp,
    pub last_used: Timestamp,
    /// Since it was started; absent when it is not up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What it was forked from: its name then, and its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<MachineName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<MachineId>,
    /// When it removes itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keepalive_until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakes_at: Option<Timestamp>,
    pub network: NetworkView,
}

/// A point in time that a machine can go back to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointView {
    /// A label, or `@1` for the newest automatic one.
    pub point: String,
    pub machine: MachineName,
    /// `snapshot`, `sleep` or `restore`.
    pub why: String,
    pub created: Timestamp,
    pub memory: ByteSize,
    pub disk: ByteSize,
    /// What its files occupy, with what they share with others.
    pub occupied: ByteSize,
    /// What only it occupies: removing it gives this back.
    pub own: ByteSize,
    /// With memory and processes, or only a disk.
    pub has_memory: bool,
}

/// Why a machine is awake or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhyView {
    pub name: MachineName,
    pub state: State,
    /// In a sentence.
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    pub policy: IdlePolicy,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkView {
    pub address: String,
    /// What it may reach, in words.
    pub egress: String,
}

/// What a login name means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolved {
    Machine(MachineName),
    /// No machine of theirs. `similar`: one whose name is nearly that.
    Lobby {
        similar: Option<MachineName>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    pub user: UserId,
    pub label: String,
    pub created: Timestamp,
    pub keys: u32,
    pub usage: Usage,
    pub quota: Quota,
}

/// What a user has of what the quota counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub machines: u32,
    /// Of machines that are up.
    pub memory: ByteSize,
    pub disk: ByteSize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UserView {
    pub user: UserId,
    pub label: String,
    pub created: Timestamp,
    pub keys: Vec<String>,
    pub machines: u32,
    /// Why the user is locked out; absent: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<String>,
}

/// A key that was added with another key than the one that is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyNotice {
    pub fingerprint: String,
    pub added: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
}

/// What a start could not place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostView {
    pub entry: String,
    pub kind: LostKind,
    pub at: Timestamp,
    pub reason: String,
    /// What its files occupy, with what they share with others.
    pub occupied: ByteSize,
    /// What the files say of whose it is and what it was called. Whether that is so is
    /// for the operator to judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<UserId>,
    pub path: String,
    pub files: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub driver: String,
    pub machines: u32,
    pub running: u32,
    pub memory_committed: ByteSize,
    pub memory_limit: ByteSize,
    pub pool_free: ByteSize,
    pub pool_size: ByteSize,
}

/// A point in time whose memory another hypervisor could not resume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StrandedView {
    /// The machine's name, and whose it is; a template is nobody's.
    pub machine: MachineName,
    pub owner: String,
    /// `asleep` if the machine sleeps in it now; else a label, or `@1` for the
    /// newest automatic one.
    pub point: String,
    pub created: Timestamp,
    /// The driver and version that wrote it.
    pub made_by: String,
}
