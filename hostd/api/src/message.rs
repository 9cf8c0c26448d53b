//! Requests and replies.

use crate::{
    FORMAT_VERSION,
    egress::{EgressChange, EgressTarget, EgressView, SecretInput, SecretView},
    view::{
        Identity, KeyNotice, LostView, MachineView, PointView, Resolved, Status, StrandedView, UserView,
        WhyView,
    },
};
use berth_types::{
    AuditEntry, IdlePolicy, Label, MachineName, MachineSpec, Point, Refusal, Schedule, Span, SshKey, UserId,
    egress::{Binding, SecretName},
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Checked before the rest is read, see [`Call::parse`].
    #[serde(default)]
    format_version: u64,
    /// The same number for builds before format versions, which require it.
    #[serde(default)]
    generation: u64,
    pub caller: Caller,
    pub request: Request,
}

impl Call {
    pub const fn new(caller: Caller, request: Request) -> Self {
        Self { format_version: FORMAT_VERSION, generation: FORMAT_VERSION, caller, request }
    }
}

/// A caller of another version, whose request was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherVersion(pub u64);

/// Only the version of a call; the rest of it may be nothing that this build knows.
#[derive(Deserialize)]
struct Version {
    #[serde(default)]
    format_version: Option<u64>,
    #[serde(default)]
    generation: Option<u64>,
}

impl Call {
    pub(crate) fn parse(text: &[u8]) -> Result<Result<Self, OtherVersion>, serde_json::Error> {
        let Version { format_version, generation } = serde_json::from_slice(text)?;
        match format_version.or(generation) {
            Some(FORMAT_VERSION) => {
                let Self { caller, request, .. } = serde_json::from_slice(text)?;
                Ok(Ok(Self::new(caller, request)))
            }
            version => Ok(Err(OtherVersion(version.unwrap_or(1)))),
        }
    }
}

/// On whose behalf. The gateway has checked a user's key before it says `User`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caller {
    /// The gateway itself, before anyone has logged in.
    Gateway,
    User(Session),
    Operator,
}

/// A user's login, as the gateway vouches for it. hostd refuses it once its key
/// is removed or its user locked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub user: UserId,
    /// The fingerprint of the key that logged in.
    pub key: String,
    /// The client's.
    pub address: IpAddr,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Request {
    /// Gateway: may this key log in at all? Asked before its signature is checked.
    Knows {
        fingerprint: String,
    },
    /// Gateway: whose key is this? Registers a new user where that is open.
    Login {
        key: SshKey,
        /// The client's.
        address: IpAddr,
    },
    /// Gateway: a connection ended without a login; for the audit log.
    LoginFailed {
        address: IpAddr,
        /// Of the last key that was offered, if any was.
        fingerprint: Option<String>,
        reason: String,
    },
    /// Gateway: answered when keys were removed or users locked since the
    /// version that is named, or after a while.
    Access {
        seen: Option<u64>,
    },
    /// Gateway, operator: is this hostd there? Its answer is one that no other gives.
    Ready,
    /// Gateway: may these logins go on?
    Standing {
        sessions: Vec<Session>,
    },

    /// User: which machine does a login name mean?
    Resolve {
        login: String,
    },
    /// User: the same of somebody who has just logged in. A machine at rest
    /// begins to wake while the client still says what it wants there.
    Expect {
        login: String,
    },
    /// User: a new stream to a machine's guest, which is started if need be.
    /// Brings a connected socket that speaks the guest protocol.
    Attach {
        name: MachineName,
    },
    /// User: the same for the default machine, which is made if it is missing.
    AttachDefault,
    New {
        spec: MachineSpec,
    },
    List,
    Info {
        name: MachineName,
    },
    /// The end of a machine's console log.
    Console {
        name: MachineName,
    },
    Remove {
        names: Vec<MachineName>,
    },
    /// Memory to disk, no process left.
    Sleep {
        name: MachineName,
    },
    /// Up again, now.
    Wake {
        name: MachineName,
    },
    /// Up again by the clock; `None` ends that.
    Schedule {
        name: MachineName,
        schedule: Option<Schedule>,
    },
    /// `source` absent: the default machine. `new` absent: a generated name.
    /// With a count: NEW-1, NEW-2 …
    Fork {
        source: Option<MachineName>,
        new: Option<MachineName>,
        count: Option<u32>,
        /// The copies are cut off from every secret.
        #[serde(default)]
        no_secrets: bool,
    },
    Snapshot {
        name: MachineName,
        label: Option<Label>,
    },
    Snapshots {
        name: MachineName,
    },
    SnapshotRemove {
        name: MachineName,
        label: Label,
    },
    Restore {
        name: MachineName,
        point: Point,
    },
    /// A new machine from a point in time of another.
    NewFrom {
        new: MachineName,
        name: MachineName,
        point: Point,
        ttl: Option<Span>,
    },
    /// `None` ends it.
    Keepalive {
        name: MachineName,
        span: Option<Span>,
    },
    /// `None`: the installation's policy again.
    Idle {
        name: MachineName,
        policy: Option<IdlePolicy>,
    },
    Why {
        name: MachineName,
    },
    Stop {
        name: MachineName,
    },
    Restart {
        name: MachineName,
    },
    Rename {
        old: MachineName,
        new: MachineName,
    },
    KeyAdd {
        key: SshKey,
    },
    KeyList,
    /// By fingerprint, or the start of one that is not ambiguous.
    KeyRemove {
        fingerprint: String,
    },
    Whoami,
    /// Sets a secret or replaces one. There is no request that reads a value.
    SecretSet {
        name: SecretName,
        binding: Binding,
        /// Only for this machine and its forks.
        machine: Option<MachineName>,
        value: SecretInput,
    },
    SecretList,
    SecretRemove {
        name: SecretName,
    },
    /// What may be reached; changed first, if there is a change.
    Egress {
        target: EgressTarget,
        change: Option<EgressChange>,
    },
    /// The newest entries that are the user's own; all of them for the operator.
    Audit {
        machine: Option<MachineName>,
        since: Option<Span>,
        /// Only what machines reached, or tried to.
        egress: bool,
        most: u32,
    },

    /// Operator: a user with a first key.
    UserAdd {
        label: String,
        key: SshKey,
    },
    UserList,
    /// Operator: a user without machines, and all their keys.
    UserRemove {
        user: UserId,
    },
    /// Operator: what a start could not place.
    LostList,
    /// Operator: one of those, with its files.
    LostShow {
        entry: String,
    },
    /// Operator: a machine of this user again, under this name or its own.
    LostRestore {
        entry: String,
        user: UserId,
        name: Option<MachineName>,
    },
    /// Operator: deletes one for good.
    LostRemove {
        entry: String,
    },
    /// Operator: ends a user's connections and refuses new ones.
    UserLock {
        user: UserId,
        /// For the user to read; may be empty.
        reason: String,
    },
    UserUnlock {
        user: UserId,
    },
    /// Operator: is everything well?
    Status,
    /// Operator: whose memory could this hypervisor not resume?
    UpgradeCheck {
        driver: String,
        version: String,
    },
    /// Operator: another master key, and every secret sealed under it.
    Rekey,
    /// Operator: stop every machine cleanly, then hostd.
    Shutdown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// What is happening now, for whoever waits.
    Progress(String),
    Done(Result<Reply, Refusal>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Done,
    Knows(bool),
    LoggedIn {
        user: UserId,
        registered: bool,
        /// Keys that were added with another key since this one was last told.
        #[serde(default)]
        notices: Vec<KeyNotice>,
    },
    /// The key is known, but may not come in, and its holder is told why.
    Barred(Refusal),
    /// The version of what keys and users may.
    Access(u64),
    /// A random word that this run of hostd has chosen.
    Ready(String),
    /// For each login that was named: why it may not go on.
    Standing(Vec<Option<Refusal>>),
    Resolved(Resolved),
    /// With the stream's file descriptor. `made`: this call made the machine.
    Attached {
        name: MachineName,
        made: bool,
    },
    Machine(Box<MachineView>),
    Machines(Vec<MachineView>),
    Console(String),
    Point(PointView),
    Points(Vec<PointView>),
    Why(WhyView),
    Removed(Vec<MachineName>),
    Key(SshKey),
    Keys(Vec<SshKey>),
    Identity(Identity),
    User(UserView),
    Users(Vec<UserView>),
    Lost(Vec<LostView>),
    Status(Status),
    Stranded(Vec<StrandedView>),
    Secret(SecretView),
    Secrets(Vec<SecretView>),
    Egress(Box<EgressView>),
    Audit(Vec<AuditEntry>),
}
