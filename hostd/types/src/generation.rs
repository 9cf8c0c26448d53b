//! Generations: frozen points in time of a machine's memory, devices and disk.

use crate::{BootId, ByteSize, GenerationId, MachineId, MachineName, Unknown, UserId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What a generation's manifest says. Never changed once it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    pub id: GenerationId,
    pub why: Why,
    /// Whose memory it is. A template of an image is nobody's.
    pub machine: Option<MachineId>,
    pub owner: Option<UserId>,
    /// The machine's name when it was captured.
    pub name: MachineName,
    pub created: Timestamp,
    pub image: String,
    pub cpus: u32,
    pub memory: ByteSize,
    pub disk: ByteSize,
    /// Device state is tied to the program that wrote it.
    pub driver: String,
    pub driver_version: String,
    pub state_size: u64,
    pub state_sha256: String,
    /// The host's boot in which it was frozen. `None`: an earlier version did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootId>,
    /// The version of the guest protocol that guest-init in its memory was heard to speak.
    /// `None`: it was not heard, or an earlier version did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<u16>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Why it was kept, which decides how long it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The machine fell asleep. The last few are kept: a timeline for free.
    Sleep,
    /// What a restore replaced, so that it can be undone.
    Restore,
    /// Someone asked for it, under this name, until they remove it.
    Snapshot(Label),
    /// Children are made from it; gone when they are.
    Fork,
    /// An image's booted state, from which machines are made.
    Template { version: String },
}

impl Why {
    /// Kept only for as long as policy says.
    pub const fn is_automatic(&self) -> bool {
        matches!(self, Self::Sleep | Self::Restore)
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a snapshot's label is 1 to 40 of a-z, A-Z, 0-9, '.', '_' and '-', starting with a letter or digit")]
pub struct InvalidLabel;

/// What a snapshot is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Label(String);

impl Label {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Label {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        let starts = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if starts && plain && text.len() <= 40 { Ok(Self(text.to_owned())) } else { Err(InvalidLabel) }
    }
}

impl TryFrom<String> for Label {
    type Error = InvalidLabel;

    fn try_from(text: String) -> Result<Self, InvalidLabel> {
        text.parse()
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        label.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Which point in time is meant: a snapshot by its label, or an automatic
/// generation by its place, `@1` the newest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Point {
    Label(Label),
    Automatic(u32),
}

impl FromStr for Point {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        match text.strip_prefix('@') {
            None => text.parse().map(Self::Label),
            Some(place) => match place.parse() {
                Ok(place) if place > 0 => Ok(Self::Automatic(place)),
                _ => Err(InvalidLabel),
            },
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(label) => label.fmt(f),
            Self::Automatic(place) => write!(f, "@{place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points() {
        assert_eq!("@2".parse(), Ok(Point::Automatic(2)));
        assert_eq!("v1.0".parse(), Ok(Point::Label(Label("v1.0".into()))));
        for bad in ["", "@0", "@", "@-1", "a/b", "..", ".a", "a b", "a\n", &"x".repeat(41)] {
            assert_eq!(bad.parse::<Point>(), Err(InvalidLabel), "{bad}");
        }
    }
}
