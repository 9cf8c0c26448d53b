//! Machine names: what people type before the `@`.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Verbs can never name a machine, those of later releases included, or
/// `ssh ls@HOST` and `ssh HOST ls` would compete for a meaning.
pub const RESERVED: &[&str] = &[
    "audit",
    "egress",
    "fork",
    "help",
    "idle",
    "info",
    "keepalive",
    "key",
    "ls",
    "new",
    "rename",
    "restart",
    "restore",
    "rm",
    "secret",
    "sleep",
    "snapshot",
    "snapshots",
    "stop",
    "tree",
    "version",
    "wake",
    "whoami",
    "why",
];

const MAX: usize = 40;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidName {
    #[error("a machine's name cannot be empty")]
    Empty,
    #[error("a machine's name has at most {MAX} characters, this one has {0}")]
    TooLong(usize),
    #[error("a machine's name starts with a letter a-z")]
    FirstCharacter,
    #[error("a machine's name is made of a-z, 0-9 and '-'")]
    Character,
    #[error("'{0}' is a verb and cannot name a machine")]
    Reserved(&'static str),
}

/// 1–40 of a–z, 0–9 and `-`, starting with a letter, and no verb.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MachineName(String);

impl MachineName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MachineName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let Some(first) = text.bytes().next() else { return Err(InvalidName::Empty) };
        if text.len() > MAX {
            return Err(InvalidName::TooLong(text.chars().count()));
        }
        if !text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
            return Err(InvalidName::Character);
        }
        if !first.is_ascii_lowercase() {
            return Err(InvalidName::FirstCharacter);
        }
        if let Some(verb) = RESERVED.iter().find(|verb| **verb == text) {
            return Err(InvalidName::Reserved(verb));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for MachineName {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<MachineName> for String {
    fn from(name: MachineName) -> Self {
        name.0
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names() {
        for good in ["a", "main", "dev-2", "a-", &"x".repeat(40)] {
            assert!(good.parse::<MachineName>().is_ok(), "{good}");
        }
    }

    #[test]
    fn bad_names() {
        let long = "x".repeat(41);
        for (bad, why) in [
            ("", InvalidName::Empty),
            (long.as_str(), InvalidName::TooLong(41)),
            ("2dev", InvalidName::FirstCharacter),
            ("-dev", InvalidName::FirstCharacter),
            ("Dev", InvalidName::Character),
            ("a/b", InvalidName::Character),
            ("a\u{7}", InvalidName::Character),
            ("größe", InvalidName::Character),
            ("ls", InvalidName::Reserved("ls")),
        ] {
            assert_eq!(bad.parse::<MachineName>(), Err(why), "{bad}");
        }
    }

    #[test]
    fn reserved_is_sorted_for_the_reader() {
        assert!(RESERVED.is_sorted());
    }
}
