//! A machine's record: what the store keeps and `machine.json` mirrors.

use crate::{
    BootId, ByteSize, GenerationId, IdlePolicy, MachineId, MachineName, Schedule, Span, State, Unknown,
    UserId, egress::EgressPolicy,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `ssh HOST` without a machine's name reaches.
pub const DEFAULT_MACHINE: &str = "main";

pub type Labels = BTreeMap<String, String>;

/// As `key=value` a label has at most so many bytes.
const LABEL_MAX: usize = 256;

/// Can a machine have this label, and a policy go by it?
pub fn is_label(key: &str, value: &str) -> bool {
    let plain = |text: &str| !text.chars().any(char::is_control);
    !key.is_empty() && !key.contains('=') && plain(key) && plain(value) && key.len() + value.len() < LABEL_MAX
}

/// What a user may choose of a machine, before anything is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    pub name: MachineName,
    /// `None`: the installation's default.
    pub image: Option<String>,
    pub cpus: Option<u32>,
    pub memory: Option<ByteSize>,
    pub disk: Option<ByteSize>,
    #[serde(default)]
    pub labels: Labels,
    /// It removes itself after this long.
    #[serde(default)]
    pub ttl: Option<Span>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub id: MachineId,
    pub owner: UserId,
    pub name: MachineName,
    pub image: String,
    pub cpus: u32,
    pub memory: ByteSize,
    pub disk: ByteSize,
    pub labels: Labels,
    pub created: Timestamp,
    pub last_used: Timestamp,
    /// The host user that its hypervisor runs as; no two machines share one.
    pub uid: u32,
    /// It has never been up: its identity is still the image's.
    pub fresh: bool,
    pub state: State,
    /// The last thing that broke, until someone stops or restarts it by hand.
    pub failure: Option<Failure>,
    /// Present while a hypervisor may exist.
    pub runtime: Option<Runtime>,
    /// Where its memory is while it sleeps.
    #[serde(default)]
    pub sleeps_in: Option<GenerationId>,
    /// What it was forked from.
    #[serde(default)]
    pub parent: Option<Parent>,
    /// Its own idle policy instead of the installation's.
    #[serde(default)]
    pub idle: Option<IdlePolicy>,
    #[serde(default)]
    pub keepalive_until: Option<Timestamp>,
    /// Since when it stands still because the pool is nearly full.
    #[serde(default)]
    pub held: Option<Timestamp>,
    #[serde(default)]
    pub schedule: Option<Schedule>,
    /// When it removes itself.
    #[serde(default)]
    pub expires: Option<Timestamp>,
    /// What it may reach, where that is its own and not its labels' or its user's.
    #[serde(default)]
    pub egress: Option<EgressPolicy>,
    /// The machines that it is a fork of: secrets that are theirs alone are its own too.
    #[serde(default)]
    pub lineage: Vec<MachineId>,
    /// Cut off from every secret but those set for it alone.
    #[serde(default)]
    pub no_secrets: bool,
    /// It is booted to become a template, or to try one: it is no user's, and a start of
    /// the service undoes it.
    #[serde(default)]
    pub template: bool,
    /// What it woke from last: its disk is made of that one's.
    #[serde(default)]
    pub woke_from: Option<GenerationId>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What a machine has of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub cpus: u32,
    pub memory: ByteSize,
    pub disk: ByteSize,
}

impl Machine {
    /// Why it stands still although somebody may want it.
    pub fn hold(&self) -> Option<Failure> {
        let at = self.held.filter(|_| self.state == State::Paused)?;
        let reason = "the host's storage is nearly full: it stands still until there is room".to_owned();
        Some(Failure { reason, at })
    }

    /// One that has never been up and has nothing but its size.
    pub fn new(owner: UserId, name: MachineName, image: String, size: Size) -> Self {
        let now = Timestamp::now();
        Self {
            id: MachineId::random(),
            owner,
            name,
            image,
            cpus: size.cpus,
            memory: size.memory,
            disk: size.disk,
            labels: Labels::new(),
            created: now,
            last_used: now,
            uid: 0,
            fresh: true,
            state: State::Stopped,
            failure: None,
            runtime: None,
            sleeps_in: None,
            parent: None,
            idle: None,
            keepalive_until: None,
            held: None,
            schedule: None,
            expires: None,
            egress: None,
            lineage: Vec::new(),
            no_secrets: false,
            template: false,
            woke_from: None,
            unknown: Unknown::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    pub machine: MachineId,
    /// Its name then, for when it is gone.
    pub name: MachineName,
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One line, for `ls`, `info` and whoever connects.
    pub reason: String,
    pub at: Timestamp,
}

/// What hostd needs to find a hypervisor again that outlived it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    pub pid: i32,
    /// The process's start time from /proc/PID/stat: a pid alone may be reused.
    pub started: u64,
    pub netns: String,
    pub driver: String,
    pub since: Timestamp,
    /// The host's boot, without which neither the pid nor what was only in the host's memory
    /// means anything. `None`: an earlier version did not say.
    #[serde(default)]
    pub boot: Option<BootId>,
}
