//! IPv4 networks, and the ones that a machine has no business in.
//!
//! Machines speak IPv4 on their link, so rules by address are IPv4 too.

use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not an IPv4 address or network such as 10.0.0.0/8")]
pub struct InvalidNetwork;

/// An address and how many of its leading bits count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ipv4Network {
    address: Ipv4Addr,
    bits: u8,
}

impl Ipv4Network {
    const fn new(a: u8, b: u8, c: u8, bits: u8) -> Self {
        Self { address: Ipv4Addr::new(a, b, c, 0), bits }
    }

    /// The network of this length that an address is in.
    pub const fn around(address: Ipv4Addr, bits: u8) -> Self {
        let bits = if bits > 32 { 32 } else { bits };
        Self { address: Ipv4Addr::from_bits(address.to_bits() & mask(bits)), bits }
    }

    pub const fn contains(self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.address.to_bits()) & mask(self.bits) == 0
    }

    /// Is all of `other` in it?
    pub const fn covers(self, other: Self) -> bool {
        self.bits <= other.bits && self.contains(other.address)
    }

    /// Is any address in both?
    pub const fn overlaps(self, other: Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Is it a part of a private or shared network?
    pub fn is_private(self) -> bool {
        SPECIAL.iter().any(|(network, special)| special.is_private() && network.covers(self))
    }
}

const fn mask(bits: u8) -> u32 {
    match u32::MAX.checked_shl(32 - bits as u32) {
        Some(mask) => mask,
        None => 0,
    }
}

impl FromStr for Ipv4Network {
    type Err = InvalidNetwork;

    /// `10.0.0.0/8`, or an address for itself alone. Bits beyond the length
    /// must be zero: `10.1.2.3/8` is more likely a mistake than a network.
    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, bits.parse().map_err(|_| InvalidNetwork)?),
            None => (text, 32),
        };
        let address: Ipv4Addr = address.parse().map_err(|_| InvalidNetwork)?;
        if bits > 32 || address.to_bits() & !mask(bits) != 0 {
            return Err(InvalidNetwork);
        }
        Ok(Self { address, bits })
    }
}

impl TryFrom<String> for Ipv4Network {
    type Error = InvalidNetwork;

    fn try_from(text: String) -> Result<Self, InvalidNetwork> {
        text.parse()
    }
}

impl From<Ipv4Network> for String {
    fn from(network: Ipv4Network) -> Self {
        network.to_string()
    }
}

impl fmt::Display for Ipv4Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            32 => write!(f, "{}", self.address),
            bits => write!(f, "{}/{bits}", self.address),
        }
    }
}

impl fmt::Debug for Ipv4Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why an address is not reached like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Special {
    Private,
    /// Carrier-grade NAT, and what some clouds put their services on.
    Shared,
    Loopback,
    /// The metadata services of clouds among them.
    LinkLocal,
    Multicast,
    Reserved,
    /// The host's own.
    Host,
    /// The machine's own link, where no other machine is.
    Link,
}

/// The documentation networks are missing on purpose: no host is there, and tests
/// put their servers on them.
const SPECIAL: &[(Ipv4Network, Special)] = &[
    // Linux connects 0.0.0.0 to its own loopback.
    (Ipv4Network::new(0, 0, 0, 8), Special::Reserved),
    (Ipv4Network::new(10, 0, 0, 8), Special::Private),
    (Ipv4Network::new(100, 64, 0, 10), Special::Shared),
    (Ipv4Network::new(127, 0, 0, 8), Special::Loopback),
    (Ipv4Network::new(169, 254, 0, 16), Special::LinkLocal),
    (Ipv4Network::new(172, 16, 0, 12), Special::Private),
    (Ipv4Network::new(192, 0, 0, 24), Special::Reserved),
    // Relays into 6to4, which lead wherever the inner address says.
    (Ipv4Network::new(192, 88, 99, 24), Special::Reserved),
    (Ipv4Network::new(192, 168, 0, 16), Special::Private),
    (Ipv4Network::new(198, 18, 0, 15), Special::Reserved),
    (Ipv4Network::new(224, 0, 0, 4), Special::Multicast),
    (Ipv4Network::new(240, 0, 0, 4), Special::Reserved),
];

impl Special {
    /// `own` are the host's addresses.
    pub fn of(address: Ipv4Addr, own: &[Ipv4Addr]) -> Option<Self> {
        if own.contains(&address) {
            return Some(Self::Host);
        }
        SPECIAL.iter().find(|(network, _)| network.contains(address)).map(|(_, special)| *special)
    }

    /// Of either family. Forms of IPv6 that carry an IPv4 address are judged by it.
    pub fn of_any(address: IpAddr, own: &[Ipv4Addr]) -> Option<Self> {
        let address = match address {
            IpAddr::V4(address) => return Self::of(address, own),
            IpAddr::V6(address) => address,
        };
        let [a, b, c, d, e, f, g, h] = address.segments();
        let carried = |high: u16, low: u16| {
            let [high, low] = [high.to_be_bytes(), low.to_be_bytes()];
            Self::of(Ipv4Addr::new(high[0], high[1], low[0], low[1]), own)
        };
        match [a, b, c, d, e, f] {
            _ if address == Ipv6Addr::LOCALHOST => Some(Self::Loopback),
            // Mapped, compatible (the unspecified address among them), and NAT64.
            [0, 0, 0, 0, 0, 0 | 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => carried(g, h),
            // NAT64 of the operator's own network: which form it has cannot be known.
            [0x64, 0xff9b, 1, ..] => Some(Self::Reserved),
            // 6to4 carries it in front; Teredo hides it behind a server.
            [0x2002, ..] => carried(b, c),
            [0x2001, 0, ..] => Some(Self::Reserved),
            [0xfe80..=0xfebf, ..] => Some(Self::LinkLocal),
            [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Some(Self::Private),
            [0xff00..=0xffff, ..] => Some(Self::Multicast),
            [0x2000..=0x3fff, ..] => None,
            _ => Some(Self::Reserved),
        }
    }

    /// May the operator let users' rules allow it by address? Nothing else is ever
    /// reached, whatever a rule says.
    pub const fn is_private(self) -> bool {
        matches!(self, Self::Private | Self::Shared)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Private => "a private address",
            Self::Shared => "a shared address",
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address",
            Self::Multicast => "a multicast address",
            Self::Reserved => "a reserved address",
            Self::Host => "an address of the host",
            Self::Link => "an address of the machine's own link",
        }
    }
}

/// The ground on which policies are judged: what no user decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ground {
    /// The host's own addresses.
    pub own: Vec<Ipv4Addr>,
    /// Private and shared networks that users' rules may allow by address.
    pub private: Vec<Ipv4Network>,
}

impl Ground {
    pub fn special(&self, address: Ipv4Addr) -> Option<Special> {
        Special::of(address, &self.own)
    }

    /// May a user's rule allow this special address?
    pub fn may_be_allowed(&self, address: Ipv4Addr, special: Special) -> bool {
        special.is_private() && self.private.iter().any(|network| network.contains(address))
    }

    /// Why a rule for this network would have no effect, if it would have none.
    pub fn forbids(&self, network: Ipv4Network) -> Option<Special> {
        let class = SPECIAL.iter().find(|(special, _)| special.covers(network)).map(|(_, special)| *special);
        match class {
            Some(never) if !never.is_private() => class,
            _ if network.bits == 32 && self.own.contains(&network.address) => Some(Special::Host),
            _ if self.private.iter().any(|private| private.overlaps(network)) => None,
            _ => class,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_what_they_say() {
        let contains = |network: &str, address: &str| {
            network.parse::<Ipv4Network>().unwrap().contains(address.parse().unwrap())
        };
        assert!(contains("10.0.0.0/8", "10.255.1.2"));
        assert!(!contains("10.0.0.0/8", "11.0.0.0"));
        assert_eq!(Ipv4Network::around([10, 1, 2, 3].into(), 24).to_string(), "10.1.2.0/24");
        assert!(contains("192.0.2.7", "192.0.2.7"));
        assert!(!contains("192.0.2.7", "192.0.2.8"));
        assert!(contains("0.0.0.0/0", "203.0.113.1"));
        for bad in ["", "10.0.0.0/33", "10.1.0.0/8", "10.0.0.0/", "10.0.0/8", "::/0", "10.0.0.0/-1"] {
            assert_eq!(bad.parse::<Ipv4Network>(), Err(InvalidNetwork), "{bad}");
        }
        for text in ["10.0.0.0/8", "192.0.2.7", "0.0.0.0/0"] {
            assert_eq!(text.parse::<Ipv4Network>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn special_addresses_are_known() {
        let own = [Ipv4Addr::new(198, 51, 100, 1)];
        for (address, special) in [
            ("10.1.2.3", Some(Special::Private)),
            ("172.31.255.255", Some(Special::Private)),
            ("172.32.0.0", None),
            ("192.168.0.1", Some(Special::Private)),
            ("100.100.100.200", Some(Special::Shared)),
            ("127.0.0.1", Some(Special::Loopback)),
            ("169.254.169.254", Some(Special::LinkLocal)),
            ("224.0.0.251", Some(Special::Multicast)),
            ("255.255.255.255", Some(Special::Reserved)),
            ("0.0.0.0", Some(Special::Reserved)),
            ("198.51.100.1", Some(Special::Host)),
            ("198.51.100.2", None),
            ("1.1.1.1", None),
        ] {
            assert_eq!(Special::of(address.parse().unwrap(), &own), special, "{address}");
        }
        for (address, special) in [
            ("::1", Some(Special::Loopback)),
            ("::", Some(Special::Reserved)),
            ("::ffff:127.0.0.1", Some(Special::Loopback)),
            ("::ffff:198.51.100.1", Some(Special::Host)),
            ("::ffff:1.1.1.1", None),
            ("::169.254.169.254", Some(Special::LinkLocal)),
            ("64:ff9b::10.0.0.1", Some(Special::Private)),
            ("64:ff9b::1.1.1.1", None),
            ("64:ff9b:1::1.1.1.1", Some(Special::Reserved)),
            ("2002:7f00:1::", Some(Special::Loopback)),
            ("2002:101:101::", None),
            ("2001:0:101:101::", Some(Special::Reserved)),
            ("fe80::1", Some(Special::LinkLocal)),
            ("fd00::1", Some(Special::Private)),
            ("ff02::1", Some(Special::Multicast)),
            ("4000::1", Some(Special::Reserved)),
            ("2606:4700::1111", None),
        ] {
            assert_eq!(Special::of_any(address.parse().unwrap(), &own), special, "{address}");
        }
    }

    #[test]
    fn a_rule_for_what_is_never_reached_is_known() {
        let ground = Ground {
            own: vec![Ipv4Addr::new(198, 51, 100, 1)],
            private: vec!["10.0.0.0/16".parse().unwrap()],
        };
        for (network, special) in [
            ("0.0.0.0", Some(Special::Reserved)),
            ("127.0.0.0/8", Some(Special::Loopback)),
            ("127.1.2.3", Some(Special::Loopback)),
            ("169.254.169.254", Some(Special::LinkLocal)),
            ("255.255.255.255", Some(Special::Reserved)),
            ("198.51.100.1", Some(Special::Host)),
            ("100.64.0.0/10", Some(Special::Shared)),
            ("192.168.0.0/24", Some(Special::Private)),
            ("10.1.0.0/16", Some(Special::Private)),
            // A part of these is reached.
            ("10.0.0.0/8", None),
            ("10.0.0.9", None),
            ("198.51.100.0/24", None),
            ("0.0.0.0/0", None),
        ] {
            assert_eq!(ground.forbids(network.parse().unwrap()), special, "{network}");
        }
        let is_private = |text: &str| text.parse::<Ipv4Network>().unwrap().is_private();
        assert!(is_private("10.0.0.0/8") && is_private("100.100.0.0/16"));
        assert!(!is_private("0.0.0.0/0") && !is_private("127.0.0.0/8") && !is_private("192.0.0.0/8"));
    }
}
