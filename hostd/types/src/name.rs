//! Machine names: what people type before the `@`.

use crate::{Code, Refusal};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Verbs never name a new machine, those of later releases included, or
/// `ssh ls@HOST` and `ssh HOST ls` would compete for a meaning.
pub const RESERVED: &[&str] = &[
    "adopt",
    "apply",
    "archive",
    "attach",
    "audit",
    "defaults",
    "describe",
    "diff",
    "each",
    "egress",
    "events",
    "export",
    "expose",
    "exposed",
    "fork",
    "give",
    "help",
    "idle",
    "image",
    "import",
    "info",
    "keep",
    "keepalive",
    "key",
    "ls",
    "mcp",
    "memory",
    "move",
    "new",
    "open",
    "policy",
    "race",
    "recover",
    "rename",
    "resize",
    "restart",
    "restore",
    "rm",
    "run",
    "secret",
    "self",
    "sessions",
    "share",
    "shares",
    "sleep",
    "snapshot",
    "snapshots",
    "stop",
    "team",
    "top",
    "trash",
    "tree",
    "try",
    "undo",
    "unexpose",
    "unshare",
    "usage",
    "version",
    "wait",
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
    #[error("a machine's name ends with a letter or digit")]
    LastCharacter,
    #[error("a machine's name has no '--' in it")]
    DoubleHyphen,
    #[error("'{0}' is a verb and cannot name a machine")]
    Reserved(&'static str),
}

/// 1–40 of a–z, 0–9 and `-`, starting with a letter. That is what a machine may be called
/// that exists already; a new name has to pass [`MachineName::for_new_machine`] as well.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MachineName(String);

impl MachineName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Refuses names that no machine gets any more: verbs, and what is not part of a DNS
    /// label in NAME--USER. Machines of earlier versions keep theirs.
    pub fn for_new_machine(self) -> Result<Self, Refusal> {
        match self.unfit() {
            None => Ok(self),
            Some(why) => Err(why.refusal(&self.0)),
        }
    }

    fn unfit(&self) -> Option<InvalidName> {
        if let Some(verb) = RESERVED.iter().find(|verb| **verb == self.0) {
            return Some(InvalidName::Reserved(verb));
        }
        if self.0.ends_with('-') {
            return Some(InvalidName::LastCharacter);
        }
        self.0.contains("--").then_some(InvalidName::DoubleHyphen)
    }
}

impl InvalidName {
    /// `shown` is the name, fit to be printed.
    pub fn refusal(&self, shown: &str) -> Refusal {
        let hint = match self {
            Self::Reserved(_) => "it is a verb, choose another name".to_owned(),
            other => other.to_string(),
        };
        Refusal::new(Code::Usage, format!("'{shown}' cannot name a machine"), hint)
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
        ] {
            assert_eq!(bad.parse::<MachineName>(), Err(why), "{bad}");
        }
    }

    #[test]
    fn names_that_no_machine_gets_any_more() {
        let new = |text: &str| text.parse::<MachineName>().unwrap().for_new_machine();
        for (bad, why) in [
            ("ls", InvalidName::Reserved("ls")),
            ("race", InvalidName::Reserved("race")),
            ("a-", InvalidName::LastCharacter),
            ("a--b", InvalidName::DoubleHyphen),
        ] {
            assert_eq!(new(bad), Err(why.refusal(bad)), "{bad}");
        }
        for good in ["a", "main", "dev-2", "a-b-c"] {
            assert!(new(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn reserved_is_sorted_for_the_reader() {
        assert!(RESERVED.is_sorted());
    }
}
