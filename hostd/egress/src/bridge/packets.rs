//! Packets that the kernel refused: what is neither TCP nor DNS has nowhere to go.
//!
//! The kernel shows the start of a few of them a second. The log has a line for each
//! place that a machine sent to, at once, and then one a minute for as long as it goes
//! on. What the guest wrote into a packet is read as far as its ports.

use crate::{
    bridge::machine::Machine,
    control::{Protocol, REFUSED_BEYOND, REFUSED_ON_CONTROL},
};
use rustix::net::{RecvFlags, recv};
use std::{
    collections::HashMap,
    io,
    net::Ipv4Addr,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::io::{Interest, unix::AsyncFd};

/// Until a place is named again.
const AGAIN: Duration = Duration::from_secs(60);
/// A guest that sends to more is reported anew for some of them.
const PLACES: usize = 256;

// Of `linux/netlink.h` and `linux/netfilter/nfnetlink_log.h`.
const MESSAGE_HEADER: usize = 16;
const FAMILY_HEADER: usize = 4;
const PAYLOAD: u16 = 9;
const PREFIX: u16 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Packet {
    protocol: u8,
    to: Ipv4Addr,
    /// Of UDP and its like.
    port: Option<u16>,
    why: Why,
}

/// Why the kernel refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Why {
    /// On the user's link.
    Link,
    Control,
    /// The first of a connection too many.
    Beyond,
}

impl Why {
    /// By the heading under which it is shown.
    fn new(heading: &[u8]) -> Self {
        match heading.strip_suffix(&[0]).unwrap_or(heading) {
            text if text == REFUSED_ON_CONTROL.as_bytes() => Self::Control,
            text if text == REFUSED_BEYOND.as_bytes() => Self::Beyond,
            _ => Self::Link,
        }
    }

    /// The rule, and the reason.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Link => ("the link", "only TCP and DNS leave a machine"),
            Self::Control => ("the control link", "it carries nothing but the host's own connections"),
            Self::Beyond => ("the link", "the machine has as many connections as are tracked"),
        }
    }
}

/// The socket on which they arrive.
#[derive(Debug)]
pub struct Shown(AsyncFd<OwnedFd>);

impl Shown {
    #[allow(unsafe_code)]
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        // SAFETY: the AsyncFd owns its socket, which nobody else can close.
        Ok(Self(unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?))
    }

    async fn next(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0
            .async_io(Interest::READABLE, |socket| Ok(recv(socket, &mut *buffer, RecvFlags::DONTWAIT)?.0))
            .await
    }
}

/// Writes lines for as long as the machine is served.
pub async fn report(machine: Arc<Machine>, shown: Shown) {
    let mut said = Said::default();
    let mut buffer = vec![0; 8 << 10];
    loop {
        let count = match shown.next(&mut buffer).await {
            Ok(count) => count,
            // More came than the queue holds; what follows is seen again.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => continue,
            Err(error) => {
                tracing::warn!(%error, machine = %machine.id, "refused packets are not seen any more");
                return;
            }
        };
        for packet in packets(buffer.get(..count).unwrap_or_default()) {
            if let Some(before) = said.now(packet, Instant::now()) {
                write(&machine, packet, before);
            }
        }
    }
}

fn write(machine: &Machine, packet: Packet, before: u64) {
    let mut decision = machine.decision(match i32::from(packet.protocol) {
        libc::IPPROTO_TCP => Protocol::Tcp,
        libc::IPPROTO_UDP => Protocol::Udp,
        libc::IPPROTO_ICMP => Protocol::Icmp,
        _ => Protocol::Ip,
    });
    decision.address = Some(packet.to);
    decision.port = packet.port;
    let (rule, reason) = packet.why.words();
    decision.rule = rule.to_owned();
    decision.reason = match before {
        0 => reason.to_owned(),
        before => format!("{reason}; seen {before} times since this was last said"),
    };
    machine.host.reporter.decided(decision);
}

/// What the log has already.
#[derive(Debug, Default)]
struct Said(HashMap<Packet, (Instant, u64)>);

impl Said {
    /// How often it was left unsaid, if it is time to say it.
    fn now(&mut self, packet: Packet, now: Instant) -> Option<u64> {
        let recent = |said: Instant| now.saturating_duration_since(said) < AGAIN;
        if let Some((said, unsaid)) = self.0.get_mut(&packet) {
            if recent(*said) {
                *unsaid += 1;
                return None;
            }
            *said = now;
            return Some(std::mem::take(unsaid));
        }
        if self.0.len() >= PLACES {
            self.0.retain(|_, (said, _)| recent(*said));
        }
        if self.0.len() >= PLACES {
            self.0.clear();
        }
        self.0.insert(packet, (now, 0));
        Some(0)
    }
}

/// Those that one datagram of the kernel shows.
fn packets(mut bytes: &[u8]) -> Vec<Packet> {
    let mut found = Vec::new();
    while let Some((message, rest)) = message(bytes) {
        found.extend(shown(message));
        bytes = rest;
    }
    found
}

/// The attributes of the first message, and what comes after it.
fn message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let attributes = bytes.get(MESSAGE_HEADER + FAMILY_HEADER..length)?;
    Some((attributes, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn shown(mut attributes: &[u8]) -> Option<Packet> {
    let (mut payload, mut why) = (None, Why::Link);
    while let Some(length) = attributes.first_chunk().map(|length| usize::from(u16::from_ne_bytes(*length))) {
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let value = attributes.get(4..length)?;
        match kind {
            PAYLOAD => payload = Some(value),
            PREFIX => why = Why::new(value),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    packet(payload?, why)
}

/// An IPv4 header, and the ports behind it if it is the first piece of a packet.
fn packet(bytes: &[u8], why: Why) -> Option<Packet> {
    let header: &[u8; 20] = bytes.first_chunk()?;
    let [first, .., a, b, c, d] = *header;
    let [_, _, _, _, _, _, fragment_high, fragment_low, _, protocol, ..] = *header;
    let is_first = u16::from_be_bytes([fragment_high & 0x1f, fragment_low]) == 0;
    let has_ports = matches!(i32::from(protocol), libc::IPPROTO_TCP | libc::IPPROTO_UDP);
    let ports = bytes.get(usize::from(first & 0xf) * 4..).filter(|_| is_first && has_ports);
    let port = ports.and_then(|ports| Some(u16::from_be_bytes(*ports.get(2..)?.first_chunk()?)));
    Some(Packet { protocol, to: Ipv4Addr::new(a, b, c, d), port, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = [&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn datagram(attributes: &[Vec<u8>]) -> Vec<u8> {
        let body = attributes.concat();
        let length = u32::try_from(MESSAGE_HEADER + FAMILY_HEADER + body.len()).unwrap();
        [length.to_ne_bytes().as_slice(), &[0; 16], &body].concat()
    }

    fn ip(protocol: u8, fragment: u8, to: [u8; 4], rest: &[u8]) -> Vec<u8> {
        let header = [0x46, 0, 0, 0, 0, 0, 0, fragment, 64, protocol, 0, 0, 10, 77, 0, 2];
        // With an option, so that the ports are not where they usually are.
        [header.as_slice(), &to, &[1, 1, 1, 0], rest].concat()
    }

    #[test]
    fn what_the_kernel_shows_is_read() {
        let udp = ip(17, 0, [10, 77, 0, 3], &[0x10, 0, 0x01, 0xbb, 0, 8, 0, 0]);
        let later = ip(17, 1, [10, 77, 0, 3], &[0x10, 0, 0x01, 0xbb, 0, 8, 0, 0]);
        let tcp = ip(6, 0, [192, 0, 2, 9], &[0x10, 0, 0, 80, 0, 0, 0, 0]);
        let echo = ip(1, 0, [192, 0, 2, 1], &[8, 0, 0, 0, 0, 0, 0, 0]);
        let first =
            datagram(&[attribute(1, &[0; 4]), attribute(PREFIX, b"link\0"), attribute(PAYLOAD, &udp)]);
        let second = datagram(&[attribute(PAYLOAD, &echo), attribute(PREFIX, b"control\0")]);
        let third = datagram(&[attribute(PREFIX, b"beyond\0"), attribute(PAYLOAD, &tcp)]);
        let place = |protocol, to: [u8; 4], port, why| Packet { protocol, to: to.into(), port, why };
        let wanted = [
            place(17, [10, 77, 0, 3], Some(443), Why::Link),
            place(1, [192, 0, 2, 1], None, Why::Control),
            place(6, [192, 0, 2, 9], Some(80), Why::Beyond),
        ];
        assert_eq!(packets(&[first.clone(), second, third].concat()), wanted);
        assert_eq!(packet(&later, Why::Link), Some(place(17, [10, 77, 0, 3], None, Why::Link)));
        for cut in 0..first.len() {
            assert!(packets(&first[..cut]).is_empty(), "cut at {cut}");
        }
        for at in 0..first.len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut bytes = first.clone();
                bytes[at] = value;
                packets(&bytes);
            }
        }
    }

    #[test]
    fn a_place_is_named_at_once_and_then_once_a_minute() {
        let mut said = Said::default();
        let to = |last| Packet { protocol: 17, to: [192, 0, 2, last].into(), port: None, why: Why::Link };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let told = [(to(1), 0), (to(1), 1), (to(2), 2), (to(1), 59), (to(1), 60), (to(1), 61)];
        let told = told.map(|(packet, seconds)| said.now(packet, at(seconds)));
        assert_eq!(told, [Some(0), None, Some(0), None, Some(2), None]);
        for last in 0..=255 {
            said.now(to(last), at(200));
        }
        said.now(Packet { port: Some(1), ..to(1) }, at(200));
        assert!(said.0.len() <= PLACES);
    }
}
