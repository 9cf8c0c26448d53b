//! Names of hosts, in the one spelling that everything is compared by.

use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr, str::FromStr};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidHost {
    #[error("a host's name cannot be empty")]
    Empty,
    #[error("a host's name has at most 253 characters")]
    TooLong,
    #[error("an address where a host's name is wanted")]
    Address,
    #[error("a host's name is made of a-z, 0-9, '-', '_' and dots between its parts")]
    Character,
}

/// A host's name: lower case, no dot at its end, no address.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

impl HostName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name without its first label: `b.example` for `a.b.example`.
    pub fn parent(&self) -> Option<&str> {
        self.0.split_once('.').map(|(_, parent)| parent)
    }
}

impl FromStr for HostName {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(InvalidHost::Empty);
        }
        if text.len() > 253 {
            return Err(InvalidHost::TooLong);
        }
        if text.parse::<IpAddr>().is_ok() {
            return Err(InvalidHost::Address);
        }
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(letter);
        if !text.split('.').all(label) {
            return Err(InvalidHost::Character);
        }
        // `127.1` and `0x7f000001` are addresses to some resolvers: no top-level
        // domain starts with a digit.
        if text.rsplit('.').next().is_some_and(|last| last.starts_with(|c: char| c.is_ascii_digit())) {
            return Err(InvalidHost::Address);
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl TryFrom<String> for HostName {
    type Error = InvalidHost;

    fn try_from(text: String) -> Result<Self, InvalidHost> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling() {
        let name: HostName = "API.Example.COM.".parse().unwrap();
        assert_eq!(name.as_str(), "api.example.com");
        assert_eq!(name.parent(), Some("example.com"));
        assert_eq!("_acme.x-y.example".parse::<HostName>().unwrap().as_str(), "_acme.x-y.example");
    }

    #[test]
    fn what_is_no_name() {
        let long = "a.".repeat(130);
        for (bad, why) in [
            ("", InvalidHost::Empty),
            (".", InvalidHost::Empty),
            (long.as_str(), InvalidHost::TooLong),
            ("127.0.0.1", InvalidHost::Address),
            ("::1", InvalidHost::Address),
            ("127.1", InvalidHost::Address),
            ("0x7f000001", InvalidHost::Address),
            ("a..b", InvalidHost::Character),
            (".a", InvalidHost::Character),
            ("a b", InvalidHost::Character),
            ("a\0.example", InvalidHost::Character),
            ("*.example", InvalidHost::Character),
            ("größe.example", InvalidHost::Character),
        ] {
            assert_eq!(bad.parse::<HostName>(), Err(why), "{bad}");
        }
    }
}
