//! IPv4 networks, and the ones that a machine has no business in.
//!
//! Machines speak IPv4 on their link, so rules by address are IPv4 too.

use serde::{Deserialize, Serialize};
use std::{fmt, net::Ipv4Addr, str::FromStr};

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

/// Why an address is refused unless a rule allows it by address.
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
    /// The machine's own link, where nobody else is. No rule allows it.
    Link,
}

/// The documentation networks are not here: nothing is there, and tests put
/// their servers on them.
const SPECIAL: &[(Ipv4Network, Special)] = &[
    (Ipv4Network::new(0, 0, 0, 8), Special::Reserved),
    (Ipv4Network::new(10, 0, 0, 8), Special::Private),
    (Ipv4Network::new(100, 64, 0, 10), Special::Shared),
    (Ipv4Network::new(127, 0, 0, 8), Special::Loopback),
    (Ipv4Network::new(169, 254, 0, 16), Special::LinkLocal),
    (Ipv4Network::new(172, 16, 0, 12), Special::Private),
    (Ipv4Network::new(192, 0, 0, 24), Special::Reserved),
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
    }
}
