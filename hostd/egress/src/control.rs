//! What hostd tells the bridge, and what the bridge tells hostd.
//!
//! Both are programs of one release, started one by the other, so the messages
//! carry no generation.

use base64::{Engine, engine::general_purpose::STANDARD};
use berth_types::{
    MachineId, MachineName, UserId,
    egress::{Binding, EgressPolicy, Ground, HostName, Ipv4Network, SecretName, SecretValue},
};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::{collections::BTreeMap, fmt, net::Ipv4Addr, net::SocketAddr};
use zeroize::Zeroizing;

/// hostd to bridge. Each command is answered by one [`Event::Done`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Command {
    pub serial: u64,
    pub order: Order,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// First of all, and again whenever one of these changes.
    Configure(Box<Settings>),
    /// Serve a machine. Comes with the descriptors of [`Listeners`], in its order.
    Link(Box<Link>),
    /// Applies to the next request; connections that are no longer allowed are closed.
    Update { machine: MachineId, terms: Box<Terms> },
    /// Stop serving a machine and end its connections.
    Unlink { machine: MachineId },
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Settings {
    /// The installation's authority, in PEM.
    pub authority_certificate: String,
    pub authority_key: Zeroizing<String>,
    /// Private authorities that upstreams may be certified by, in PEM, besides
    /// those that the host trusts.
    pub extra_roots: String,
    /// Names that are looked up here first, as in /etc/hosts.
    pub hosts: BTreeMap<HostName, Vec<Ipv4Addr>>,
    /// The host's own addresses, and the private networks that users may allow.
    pub ground: Ground,
    /// Asked in this order.
    pub resolvers: Vec<SocketAddr>,
    pub limits: Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections that one machine may hold.
    pub connections: u32,
    /// Of these, how many may still be dialling or shaking hands.
    pub half_open: u32,
    /// DNS questions of one machine in a second, and as many again at once.
    pub dns_per_second: u32,
    /// The head of a request or response.
    pub header_bytes: u32,
    /// A body in which placeholders are replaced.
    pub body_bytes: u32,
    /// Streams of one HTTP/2 connection at a time.
    pub streams: u32,
    /// Bodies of one machine that are kept at a time to have placeholders replaced.
    pub machine_bodies_bytes: u32,
    /// The same of all machines.
    pub bodies_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 2048,
            half_open: 256,
            dns_per_second: 100,
            header_bytes: 64 * 1024,
            body_bytes: 1024 * 1024,
            streams: 128,
            machine_bodies_bytes: 16 * 1024 * 1024,
            bodies_bytes: 256 * 1024 * 1024,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Link {
    pub machine: MachineId,
    /// The host's address on the machine's link: where `berth.internal` is.
    pub gateway: Ipv4Addr,
    /// The link's own network. Nobody else is there, whatever rules allow.
    pub network: Ipv4Network,
    pub terms: Terms,
}

/// What of a link may change while it is up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Terms {
    pub name: MachineName,
    pub owner: UserId,
    pub policy: EgressPolicy,
    pub secrets: Vec<Secret>,
    /// What `http://berth.internal/` answers.
    pub info: serde_json::Value,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Secret {
    pub name: SecretName,
    pub binding: Binding,
    #[serde(serialize_with = "write_value", deserialize_with = "read_value")]
    pub value: SecretValue,
    /// What the machine has instead, and what replaces the value where a server
    /// sends it back. Every secret has one.
    pub placeholder: String,
}

/// How the placeholders of all secrets begin.
pub const PLACEHOLDER: &str = "berth_secret_";

/// A fresh placeholder. It is opaque: neither the name nor the value is in it.
pub fn new_placeholder() -> String {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).expect("the kernel gives randomness");
    bytes.iter().fold(PLACEHOLDER.to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// How many there are in [`Listeners`].
pub const LISTENERS: usize = 6;

/// The sockets of one machine, made inside its namespace; TCP ones listen.
/// What the guest sends anywhere is redirected to one of them, so that
/// `SO_ORIGINAL_DST` says where it was meant to go, or is refused by the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Listeners<T> {
    /// Port 443.
    pub tls: T,
    /// Port 80.
    pub http: T,
    /// Every other port.
    pub other: T,
    /// Port 53.
    pub dns_udp: T,
    pub dns_tcp: T,
    /// Netlink, on which the kernel shows packets that it refused.
    pub refused: T,
}

/// Why the kernel refused a packet: the heading under which it shows it.
pub const REFUSED_ON_LINK: &str = "link";
pub const REFUSED_ON_CONTROL: &str = "control";
/// More connections than are tracked.
pub const REFUSED_BEYOND: &str = "beyond";

impl<T> Listeners<T> {
    pub fn into_array(self) -> [T; LISTENERS] {
        [self.tls, self.http, self.other, self.dns_udp, self.dns_tcp, self.refused]
    }

    pub fn from_array([tls, http, other, dns_udp, dns_tcp, refused]: [T; LISTENERS]) -> Self {
        Self { tls, http, other, dns_udp, dns_tcp, refused }
    }
}

/// Bridge to hostd.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Up, and waiting to be configured.
    Ready,
    /// A command was carried out, or why it was not.
    Done { serial: u64, error: Option<String> },
    /// One line for the audit log.
    Decision(Box<Decision>),
    /// So many decisions were not told, because there were too many at once.
    Untold { decisions: u64 },
    /// A machine's connections moved bytes since this was last said.
    Moved { machine: MachineId, bytes: u64 },
    /// Only from [`crate::Bridge`]: the process died and another takes its place.
    Restarted,
}

/// A decision on one connection, request or lookup. Never a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub machine: MachineId,
    pub owner: UserId,
    /// When it was taken.
    pub time: Timestamp,
    pub protocol: Protocol,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostName>,
    /// What the guest called it, where the host knows the address by another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<HostName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    pub verdict: Outcome,
    /// What decided: `open`, `deny evil.example`, `secret openai` …
    pub rule: String,
    /// Why it was refused or failed, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// From the machine, and to it.
    pub up: u64,
    pub down: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Allowed,
    /// A rule or a gate said no.
    Refused,
    /// It was allowed, and the upstream could not be reached.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Dns,
    Tcp,
    Tls,
    Http,
    Https,
    Ssh,
    Udp,
    Icmp,
    /// Any other on top of IP.
    Ip,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn write_value<S: Serializer>(value: &SecretValue, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&Zeroizing::new(STANDARD.encode(value.expose())))
}

fn read_value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SecretValue, D::Error> {
    let text = Zeroizing::new(String::deserialize(deserializer)?);
    let bytes = STANDARD.decode(text.as_bytes()).map_err(|_| D::Error::custom("not base64"))?;
    SecretValue::new(bytes).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::egress::Projection;

    #[test]
    fn a_secret_crosses_and_is_not_printed() {
        let secret = Secret {
            name: "openai".parse().unwrap(),
            binding: Binding::new(vec!["api.example".parse().unwrap()], vec![Projection::Placeholder])
                .unwrap(),
            value: SecretValue::new(b"sk-very-secret".to_vec()).unwrap(),
            placeholder: new_placeholder(),
        };
        let read: Secret = serde_json::from_slice(&serde_json::to_vec(&secret).unwrap()).unwrap();
        assert_eq!(read.value.expose(), b"sk-very-secret");
        assert_eq!(read.placeholder.len(), PLACEHOLDER.len() + 32);
        assert!(!format!("{read:?}").contains("very-secret"));
    }
}
