//! Addresses that no rule of a user's opens: the host's own first of all.

use crate::support::{World, world::HOST};
use berth_egress::control::Outcome;
use std::{
    io::{ErrorKind, Read},
    net::TcpListener,
};

/// A service of the host's that no machine may reach.
fn service(world: &World, address: &str) -> TcpListener {
    world.host.listen(address.parse().unwrap())
}

fn allow(world: &mut World, rules: &[&str]) {
    world.update(|terms| terms.policy.allow = rules.iter().map(|rule| rule.parse().unwrap()).collect());
}

/// Connects and hears nothing; the service was not even connected to.
fn is_refused(world: &World, to: &str, service: &TcpListener) {
    let heard = world.guest.connect(to).and_then(|mut stream| stream.read(&mut [0]));
    assert_ne!(heard.ok(), Some(1), "{to} answered");
    assert_eq!(service.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "{to} was connected to");
}

#[test]
fn a_rule_of_the_users_does_not_open_the_host() {
    berth_sys::needs_root!();
    let mut world = World::new(Vec::new());
    let own = HOST.to_string();
    let service = service(&world, "0.0.0.0:9100");
    allow(&mut world, &[&own, "0.0.0.0/0", "100.64.0.0/10", "127.0.0.0/8"]);
    for (to, rule) in [
        (own.as_str(), "an address of the host"),
        ("100.64.0.1", "a shared address"),
        ("169.254.169.254", "a link-local address"),
        ("192.168.0.1", "a private address"),
        ("240.0.0.1", "a reserved address"),
        ("198.18.0.1", "a reserved address"),
    ] {
        is_refused(&world, &format!("{to}:9100"), &service);
        world.refused(rule);
    }
}

#[test]
fn an_address_that_the_host_got_a_moment_ago_is_its_own() {
    berth_sys::needs_root!();
    let mut world = World::new(Vec::new());
    // The bridge is not told: hostd may be a moment behind.
    world.host.ip("addr add 198.51.100.200/24 dev near");
    world.host.ip("route add local 203.0.113.0/24 dev lo");
    let service = service(&world, "0.0.0.0:9100");
    allow(&mut world, &["198.51.100.200", "203.0.113.9"]);
    for to in ["198.51.100.200:9100", "203.0.113.9:9100"] {
        let heard = world.guest.connect(to).and_then(|mut stream| stream.read(&mut [0]));
        assert_ne!(heard.ok(), Some(1), "{to} answered");
        let decision = world.decision(|decision| decision.port == Some(9100));
        assert_eq!(decision.verdict, Outcome::Refused, "{decision:?}");
        assert!(decision.reason.contains("an address of the host"), "{decision:?}");
    }
    drop(service);
}

#[test]
fn a_private_network_is_reached_where_the_operator_leaves_it_to_users() {
    berth_sys::needs_root!();
    let mut world = World::new(Vec::new());
    world.servers.ip("addr add 10.20.0.9/32 dev lo");
    world.host.ip("route add 10.20.0.9/32 via 198.51.100.10");
    let listener = world.servers.listen("10.20.0.9:9100".parse().unwrap());
    is_refused(&world, "10.20.0.9:9100", &listener);
    world.refused("a private address");
    allow(&mut world, &["10.20.0.9"]);
    let stream = world.guest.connect("10.20.0.9:9100").unwrap();
    listener.set_nonblocking(false).unwrap();
    drop((listener.accept().unwrap(), stream));
    world.allowed("allow 10.20.0.9");
    // Taken back by the operator, whatever the rule says.
    world.settings.ground.private.clear();
    world.runtime.block_on(world.bridge.configure(world.settings.clone())).unwrap();
    listener.set_nonblocking(true).unwrap();
    is_refused(&world, "10.20.0.9:9100", &listener);
    world.refused("a private address");
}

/// A handshake by hand with 0.0.0.0, which no socket of the guest's would make. The
/// guest's kernel knows of no such connection, and is kept from resetting it.
const FORGED: &str = r#"
import socket, struct
port = 40001
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
raw.setsockopt(socket.IPPROTO_IP, socket.IP_HDRINCL, 1)
raw.settimeout(10)
source, target = socket.inet_aton("10.77.0.2"), socket.inet_aton("0.0.0.0")
def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff
def send(sequence, acknowledged, flags):
    tcp = struct.pack("!HHIIBBHHH", port, 9100, sequence, acknowledged, 5 << 4, flags, 65535, 0, 0)
    total = checksum(source + target + struct.pack("!BBH", 0, 6, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack("!H", total) + tcp[18:]
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, 6, 0, source, target)
    raw.sendto(ip + tcp, ("0.0.0.0", 0))
def hear():
    while True:
        packet = raw.recv(4096)
        head = packet[(packet[0] & 15) * 4:]
        from_port, to_port, sequence, _, _, flags = struct.unpack("!HHIIBB", head[:14])
        if (from_port, to_port) == (9100, port) and flags & 0x16:
            return sequence, flags
send(1000, 0, 2)
sequence, flags = hear()
assert flags & 0x12 == 0x12, flags
send(1001, sequence + 1, 16)
while True:
    _, flags = hear()
    if flags & 4:
        print("reset")
        break
"#;

#[test]
fn a_packet_to_no_address_does_not_reach_the_hosts_loopback() {
    berth_sys::needs_root!();
    let mut world = World::new(Vec::new());
    let service = service(&world, "127.0.0.1:9100");
    world.guest.nft("add rule ip guest filter tcp sport 40001 tcp flags & rst == rst drop");
    allow(&mut world, &["0.0.0.0", "0.0.0.0/8", "127.0.0.0/8"]);
    let ran = world.guest.run("python3", &["-c", FORGED]);
    let decision = world.decision(|decision| decision.port == Some(9100));
    assert_eq!(decision.address, Some([0, 0, 0, 0].into()), "{ran:?}");
    assert_eq!((decision.verdict, decision.rule.as_str()), (Outcome::Refused, "a reserved address"));
    assert_eq!(ran.out, "reset\n", "{ran:?}");
    assert_eq!(service.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "the host was connected to");
}
