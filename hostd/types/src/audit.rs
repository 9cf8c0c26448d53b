//! The audit log's entries: what was done, by whom, and what a machine reached.
//!
//! An entry is a line of JSON. Its `prev` is the SHA-256 of the line before it,
//! so nothing can be changed, left out or moved without breaking the chain; a
//! checkpoint's signature vouches for everything up to it. Never a secret's value.

use crate::{MachineId, MachineName, UserId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Counts from 0, without gaps, over all files.
    pub seq: u64,
    pub time: Timestamp,
    #[serde(flatten)]
    pub event: AuditEvent,
    /// SHA-256 of the line before, in hexadecimal.
    pub prev: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum AuditEvent {
    /// The host started to write.
    Started { version: String },
    /// A crash had torn the last line, which is not there any more.
    Recovered { bytes: u64 },
    /// So many events could not be written: the disk was full, most likely.
    Lost { events: u64 },
    /// Somebody's key was accepted.
    Login {
        user: UserId,
        fingerprint: String,
        registered: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<IpAddr>,
    },
    /// A login failed or was refused.
    Refused {
        /// Empty: no key was offered.
        fingerprint: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<IpAddr>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    /// So many further events of one kind were not written one by one: there were too
    /// many within a minute.
    Counted {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<UserId>,
        verb: String,
        events: u64,
    },
    /// Something was asked for, with what came of it: `done` or a refusal's code.
    Verb {
        /// Absent for the operator.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<UserId>,
        verb: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        machine: Option<MachineName>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
        outcome: String,
    },
    /// A machine's state changed.
    Machine {
        user: UserId,
        machine: MachineName,
        machine_id: MachineId,
        state: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    },
    /// A decision of the bridge.
    Egress(Box<EgressEntry>),
    Checkpoint {
        /// The oldest file that was kept then.
        oldest: u64,
        /// Of ed25519, in hexadecimal, over the log's name, the sequence number, `prev`,
        /// `oldest` and the time.
        signature: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressEntry {
    pub user: UserId,
    pub machine: MachineName,
    pub machine_id: MachineId,
    /// By name where one is known.
    pub host: String,
    /// What the machine called it, where the host knows the address by another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<std::net::IpAddr>,
    pub port: u16,
    pub protocol: String,
    /// What decided: a rule of the policy, or a secret by its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    pub verdict: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    pub up: u64,
    pub down: u64,
    /// How many decisions this line stands for, where they were too many for a line each.
    /// 0: this one alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub times: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl AuditEvent {
    /// Whose business it is; `None`: the operator's alone.
    pub fn user(&self) -> Option<&UserId> {
        match self {
            Self::Login { user, .. } | Self::Machine { user, .. } => Some(user),
            Self::Verb { user, .. } | Self::Counted { user, .. } => user.as_ref(),
            Self::Egress(entry) => Some(&entry.user),
            Self::Started { .. }
            | Self::Recovered { .. }
            | Self::Lost { .. }
            | Self::Refused { .. }
            | Self::Checkpoint { .. } => None,
        }
    }

    /// Which machine it is about, by the name it had then.
    pub fn machine(&self) -> Option<&MachineName> {
        match self {
            Self::Machine { machine, .. } => Some(machine),
            Self::Verb { machine, .. } => machine.as_ref(),
            Self::Egress(entry) => Some(&entry.machine),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_one_flat_line() {
        let event = AuditEvent::Verb {
            user: None,
            verb: "status".into(),
            machine: None,
            detail: String::new(),
            outcome: "done".into(),
        };
        let entry = AuditEntry { seq: 7, time: Timestamp::UNIX_EPOCH, event, prev: "ab".into() };
        let line = serde_json::to_string(&entry).unwrap();
        let expected = r#"{"seq":7,"time":"1970-01-01T00:00:00Z","kind":"verb","verb":"status","outcome":"done","prev":"ab"}"#;
        assert_eq!(line, expected);
        assert_eq!(serde_json::from_str::<AuditEntry>(&line).unwrap(), entry);
    }
}
