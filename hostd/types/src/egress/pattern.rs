//! Patterns: how rules name destinations.

use crate::egress::{HostName, InvalidHost, InvalidNetwork, Ipv4Network};
use serde::{Deserialize, Serialize};
use std::{fmt, net::Ipv4Addr, str::FromStr};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidPattern {
    #[error("a port is a number from 1 to 65535")]
    Port,
    #[error("a '*' stands for the whole first part only, as in *.example.com")]
    Wildcard,
    #[error(transparent)]
    Host(#[from] InvalidHost),
    #[error(transparent)]
    Network(#[from] InvalidNetwork),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    Name(HostName),
    /// `*.example.com`: one label below, and not `example.com` itself.
    Below(HostName),
    Network(Ipv4Network),
}

/// A host or network, and a port if it is meant alone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPattern {
    pub host: Host,
    pub port: Option<u16>,
}

impl HostPattern {
    pub fn matches_name(&self, name: &HostName) -> bool {
        match &self.host {
            Host::Name(exact) => exact == name,
            Host::Below(parent) => name.parent() == Some(parent.as_str()),
            Host::Network(_) => false,
        }
    }

    pub fn matches_address(&self, address: Ipv4Addr) -> bool {
        matches!(&self.host, Host::Network(network) if network.contains(address))
    }

    pub fn matches_port(&self, port: u16) -> bool {
        self.port.is_none_or(|only| only == port)
    }

    /// Is it said by address, rather than by name?
    pub const fn is_network(&self) -> bool {
        matches!(self.host, Host::Network(_))
    }
}

impl FromStr for HostPattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => {
                let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
                let port = port.parse().ok().filter(|port| digits && *port != 0);
                (host, Some(port.ok_or(InvalidPattern::Port)?))
            }
            None => (text, None),
        };
        let host = if let Some(parent) = host.strip_prefix("*.") {
            Host::Below(parent.parse().map_err(|error| match error {
                InvalidHost::Character if parent.contains('*') => InvalidPattern::Wildcard,
                error => error.into(),
            })?)
        } else if host.contains('*') {
            return Err(InvalidPattern::Wildcard);
        } else if host.contains('/') || host.parse::<Ipv4Addr>().is_ok() {
            Host::Network(host.parse()?)
        } else {
            Host::Name(host.parse()?)
        };
        Ok(Self { host, port })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => write!(f, "{name}")?,
            Host::Below(parent) => write!(f, "*.{parent}")?,
            Host::Network(network) => write!(f, "{network}")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for HostPattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, InvalidPattern> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> HostPattern {
        text.parse().unwrap()
    }

    #[test]
    fn patterns_read_as_they_are_written() {
        for text in ["api.example.com", "*.debian.org", "10.0.0.0/8:5432", "192.0.2.1:22", "db.internal:5432"]
        {
            assert_eq!(pattern(text).to_string(), text);
        }
        assert_eq!(pattern("API.Example.com.").to_string(), "api.example.com");
    }

    #[test]
    fn a_wildcard_is_one_label_deep() {
        let below = pattern("*.example.com");
        for (name, matches) in [
            ("a.example.com", true),
            ("a.b.example.com", false),
            ("example.com", false),
            ("aexample.com", false),
        ] {
            assert_eq!(below.matches_name(&name.parse().unwrap()), matches, "{name}");
        }
    }

    #[test]
    fn ports_narrow() {
        assert!(pattern("a.example").matches_port(443));
        assert!(pattern("a.example:8443").matches_port(8443));
        assert!(!pattern("a.example:8443").matches_port(443));
    }

    #[test]
    fn what_is_no_pattern() {
        for bad in [
            "",
            "*",
            "*.",
            "a.*.example",
            "*a.example",
            "*.*.example",
            "a.example:",
            "a.example:0",
            "a.example:+1",
            "a.example:70000",
            "10.1.0.0/8",
            "a/b",
            "https://a.example",
            "a.example:443:1",
            "a b",
        ] {
            assert!(bad.parse::<HostPattern>().is_err(), "{bad}");
        }
    }
}
