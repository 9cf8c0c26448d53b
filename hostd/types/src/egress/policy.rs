//! The policy of one machine, and the pure decision on one destination.
//!
//! In order: what is denied stays denied; special addresses (loopback, the host's
//! own …) are never reached, but for private ones that the operator leaves to users,
//! which pass if a rule allows them by address; then the mode.

use crate::{
    Unknown,
    egress::{Ground, HostName, HostPattern, Special},
};
use serde::{Deserialize, Serialize};
use std::{fmt, net::Ipv4Addr, str::FromStr};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressMode {
    /// Everything that is not denied.
    #[default]
    Open,
    /// What is allowed and not denied.
    Allowlist,
    /// Nothing.
    Closed,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("an egress mode is one of open, allowlist and closed")]
pub struct InvalidMode;

impl EgressMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Allowlist => "allowlist",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for EgressMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for EgressMode {
    type Err = InvalidMode;

    fn from_str(text: &str) -> Result<Self, InvalidMode> {
        [Self::Open, Self::Allowlist, Self::Closed]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or(InvalidMode)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressPolicy {
    pub mode: EgressMode,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<HostPattern>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<HostPattern>,
    /// Hosts whose TLS is never opened, whatever a secret says of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passthrough: Vec<HostPattern>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What is known of a destination: before its name is resolved there is no
/// address, and an address need not have a name.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// A name that the host itself tied to the address, or is about to.
    pub name: Option<&'a HostName>,
    pub address: Option<Ipv4Addr>,
    pub port: Option<u16>,
}

/// What decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    Allow(HostPattern),
    Deny(HostPattern),
    Special(Special),
    Mode(EgressMode),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow(pattern) => write!(f, "allow {pattern}"),
            Self::Deny(pattern) => write!(f, "deny {pattern}"),
            Self::Special(special) => f.write_str(special.as_str()),
            Self::Mode(mode) => write!(f, "{mode}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    pub rule: Rule,
}

impl EgressPolicy {
    pub fn decide(&self, to: Destination<'_>, ground: &Ground) -> Verdict {
        let no = |rule| Verdict { allowed: false, rule };
        let yes = |rule| Verdict { allowed: true, rule };
        if self.mode == EgressMode::Closed {
            return no(Rule::Mode(self.mode));
        }
        // A denied port says nothing of the host's other ports, so a name whose
        // port is not known yet is denied only by a rule for all of them.
        let denies = |rule: &&HostPattern| match to.port {
            Some(port) => rule.matches_port(port),
            None => rule.port.is_none(),
        };
        if let Some(rule) = self.deny.iter().filter(denies).find(|rule| names(rule, to)) {
            return no(Rule::Deny(rule.clone()));
        }
        let allows = |rule: &&HostPattern| to.port.is_none_or(|port| rule.matches_port(port));
        if let Some(address) = to.address
            && let Some(special) = ground.special(address)
        {
            let by_address = self.allow.iter().filter(allows).find(|rule| rule.matches_address(address));
            return match by_address.filter(|_| ground.may_be_allowed(address, special)) {
                Some(rule) => yes(Rule::Allow(rule.clone())),
                None => no(Rule::Special(special)),
            };
        }
        match self.allow.iter().filter(allows).find(|rule| names(rule, to)) {
            Some(rule) => yes(Rule::Allow(rule.clone())),
            None if self.mode == EgressMode::Open => yes(Rule::Mode(self.mode)),
            // Not even to look whether it resolves into an allowed network: each
            // name that is looked up can carry something out.
            None => no(Rule::Mode(self.mode)),
        }
    }

    /// How many rules it has.
    pub const fn rules(&self) -> usize {
        self.allow.len() + self.deny.len() + self.passthrough.len()
    }

    /// Is this host's TLS left closed?
    pub fn passes_tls(&self, name: &HostName, port: u16) -> bool {
        self.passthrough.iter().any(|rule| rule.matches_port(port) && rule.matches_name(name))
    }
}

fn names(rule: &HostPattern, to: Destination<'_>) -> bool {
    to.name.is_some_and(|name| rule.matches_name(name))
        || to.address.is_some_and(|address| rule.matches_address(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(list: &[&str]) -> Vec<HostPattern> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn policy(mode: EgressMode, allow: &[&str], deny: &[&str]) -> EgressPolicy {
        EgressPolicy {
            mode,
            allow: patterns(allow),
            deny: patterns(deny),
            passthrough: Vec::new(),
            unknown: Unknown::new(),
        }
    }

    fn decide(policy: &EgressPolicy, name: &str, address: &str, port: u16) -> (bool, String) {
        let name: Option<HostName> = name.parse().ok();
        let to = Destination {
            name: name.as_ref(),
            address: address.parse().ok(),
            port: (port != 0).then_some(port),
        };
        let ground = Ground {
            own: vec![Ipv4Addr::new(198, 51, 100, 1)],
            private: vec!["10.0.0.0/8".parse().unwrap()],
        };
        let verdict = policy.decide(to, &ground);
        (verdict.allowed, verdict.rule.to_string())
    }

    #[test]
    fn open_allows_what_is_not_denied_or_special() {
        let policy = policy(
            EgressMode::Open,
            &["10.0.0.0/8:5432"],
            &["evil.example", "*.bad.example:25", "192.0.2.0/24"],
        );
        for (name, address, port, allowed, rule) in [
            ("a.example", "198.51.100.9", 443, true, "open"),
            ("a.example", "", 0, true, "open"),
            ("evil.example", "", 0, false, "deny evil.example"),
            ("evil.example", "198.51.100.9", 443, false, "deny evil.example"),
            ("x.bad.example", "", 0, true, "open"),
            ("x.bad.example", "198.51.100.9", 25, false, "deny *.bad.example:25"),
            ("x.bad.example", "198.51.100.9", 443, true, "open"),
            ("", "192.0.2.77", 1, false, "deny 192.0.2.0/24"),
            ("", "10.0.0.9", 5432, true, "allow 10.0.0.0/8:5432"),
            ("", "10.0.0.9", 22, false, "a private address"),
            ("rebound.example", "127.0.0.1", 443, false, "a loopback address"),
            ("rebound.example", "169.254.169.254", 80, false, "a link-local address"),
            ("", "198.51.100.1", 443, false, "an address of the host"),
        ] {
            assert_eq!(
                decide(&policy, name, address, port),
                (allowed, rule.to_owned()),
                "{name} {address} {port}"
            );
        }
    }

    #[test]
    fn an_allowlist_allows_only_what_it_names() {
        let policy =
            policy(EgressMode::Allowlist, &["*.debian.org", "api.example:8443"], &["bad.debian.org"]);
        for (name, address, port, allowed, rule) in [
            ("deb.debian.org", "", 0, true, "allow *.debian.org"),
            ("deb.debian.org", "192.0.2.1", 80, true, "allow *.debian.org"),
            ("bad.debian.org", "192.0.2.1", 80, false, "deny bad.debian.org"),
            ("api.example", "", 0, true, "allow api.example:8443"),
            ("api.example", "192.0.2.2", 8443, true, "allow api.example:8443"),
            ("api.example", "192.0.2.2", 443, false, "allowlist"),
            ("other.example", "", 0, false, "allowlist"),
            ("", "192.0.2.1", 80, false, "allowlist"),
            // Allowed by name is not allowed by address.
            ("deb.debian.org", "10.0.0.1", 80, false, "a private address"),
        ] {
            assert_eq!(
                decide(&policy, name, address, port),
                (allowed, rule.to_owned()),
                "{name} {address} {port}"
            );
        }
    }

    #[test]
    fn a_network_allows_no_names() {
        let policy = policy(EgressMode::Allowlist, &["10.0.0.0/8"], &[]);
        assert!(!decide(&policy, "db.corp.example", "", 0).0);
        assert!(decide(&policy, "db.corp.example", "10.2.3.4", 5432).0);
        assert!(!decide(&policy, "db.corp.example", "192.0.2.1", 5432).0);
    }

    #[test]
    fn no_rule_of_a_user_allows_the_host_or_what_the_operator_keeps() {
        let everything =
            ["0.0.0.0/0", "0.0.0.0", "127.0.0.0/8", "198.51.100.1", "100.64.0.0/10", "224.0.0.0/4"];
        for mode in [EgressMode::Open, EgressMode::Allowlist] {
            let policy = policy(mode, &everything, &[]);
            for (address, rule) in [
                ("0.0.0.0", "a reserved address"),
                ("127.0.0.1", "a loopback address"),
                ("198.51.100.1", "an address of the host"),
                ("100.100.100.200", "a shared address"),
                ("192.168.1.1", "a private address"),
                ("169.254.169.254", "a link-local address"),
                ("224.0.0.1", "a multicast address"),
                ("240.0.0.1", "a reserved address"),
                ("198.18.0.1", "a reserved address"),
            ] {
                assert_eq!(decide(&policy, "", address, 80), (false, rule.to_owned()), "{mode} {address}");
            }
            assert!(decide(&policy, "", "10.0.0.1", 80).0, "what the operator leaves to users");
            assert!(decide(&policy, "", "198.51.100.2", 80).0);
        }
    }

    #[test]
    fn closed_is_closed() {
        let policy = policy(EgressMode::Closed, &["a.example", "10.0.0.0/8"], &[]);
        assert_eq!(decide(&policy, "a.example", "192.0.2.1", 443), (false, "closed".to_owned()));
        assert!(!decide(&policy, "", "10.0.0.1", 1).0);
    }

    #[test]
    fn a_policy_survives_its_record() {
        let policy = policy(EgressMode::Allowlist, &["*.debian.org", "10.0.0.0/8:5432"], &["x.example"]);
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<EgressPolicy>(&text).unwrap(), policy);
        assert_eq!(serde_json::from_str::<EgressPolicy>("{}").unwrap(), EgressPolicy::default());
    }
}
