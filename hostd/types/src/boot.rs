//! A boot of the host: what was only in the host's memory ended with it.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not the id of a boot: {0:?}")]
pub struct InvalidBootId(String);

/// What the kernel calls one of its lives, in `/proc/sys/kernel/random/boot_id`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BootId(String);

impl FromStr for BootId {
    type Err = InvalidBootId;

    fn from_str(text: &str) -> Result<Self, InvalidBootId> {
        let plain = text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        if plain && (8..=40).contains(&text.len()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidBootId(text.chars().take(40).collect()))
        }
    }
}

impl TryFrom<String> for BootId {
    type Error = InvalidBootId;

    fn try_from(text: String) -> Result<Self, InvalidBootId> {
        text.parse()
    }
}

impl From<BootId> for String {
    fn from(boot: BootId) -> Self {
        boot.0
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
