//! Where a guest's packets may go: to the bridge's listeners, and nowhere else.
//!
//! ```text
//!   eth0 ── TCP to 443 ─▶ TLS listener        ctl0 ── guest-init's answers ─▶ accepted
//!           TCP to  80 ─▶ HTTP listener               anything else ────────▶ dropped
//!           TCP, UDP 53 ▶ DNS
//!           other TCP ──▶ the third listener
//!           echo to the gateway ─▶ answered
//!           other UDP ──▶ port unreachable: QUIC falls back at once
//!           the rest ───▶ administratively prohibited
//! ```
//!
//! A packet from an address that is not the guest's is dropped before the kernel tracks
//! its connection, and one guest's connections are tracked up to a limit: each costs
//! memory of the host's.
//!
//! What the kernel refuses here it shows to the bridge, a few packets a second, for
//! the audit log.
//!
//! Every TCP connection is redirected, one to a listener's own port too: it
//! arrives with its original destination, which the bridge refuses. Nothing is
//! forwarded, for there is no route and forwarding is off.

use super::nft::{self, Batch, Rule};
use berth_egress::control::{Listeners, REFUSED_BEYOND, REFUSED_ON_CONTROL, REFUSED_ON_LINK};
use berth_guest_protocol as guest;
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket},
    os::fd::OwnedFd,
};

const TABLE: &str = "berth";
const SOURCES: &str = "sources";
const COUNT: &str = "count";
const BEYOND: &str = "beyond";
const REDIRECT: &str = "redirect";
const GUARD: &str = "guard";
/// Before the kernel tracks connections, and right after.
const RAW: libc::c_int = -300;
const TRACKED: libc::c_int = -150;
/// Connections of a machine that the kernel tracks while they are open or being opened:
/// about five megabytes, and more than the bridge serves.
const CONNECTIONS: u32 = 16 * 1024;
/// For how many seconds it tracks those that are not, which count for nothing.
const TIMEOUTS: &[(&str, &str)] = &[("close", "1"), ("time_wait", "10")];
/// The usual priorities of destination NAT and of filters.
const NAT: libc::c_int = -100;
const FILTER: libc::c_int = 0;
const PORT_UNREACHABLE: u8 = 3;
const PROHIBITED: u8 = 13;
const ECHO: u8 = 8;
/// By which the kernel shows refused packets, and how many in a second: enough to
/// see what goes on, too few to keep anybody busy.
const SHOWN: u16 = 77;
const SHOWN_A_SECOND: u32 = 10;

// Of the gateway's address in each namespace.
const TLS_PORT: u16 = 10_443;
const HTTP_PORT: u16 = 10_080;
const DNS_PORT: u16 = 10_053;
const OTHER_PORT: u16 = 10_000;

/// What the bridge serves a machine on.
pub type Doors = Listeners<OwnedFd>;

/// Opens them in the calling thread's namespace.
pub fn doors() -> io::Result<Doors> {
    let place = |port| SocketAddrV4::new(Ipv4Addr::from(guest::ETH_HOST_ADDRESS), port);
    // std's listeners may take a port that a dead hostd's connections linger on.
    let listen = |port| -> io::Result<OwnedFd> {
        let listener = TcpListener::bind(place(port))?;
        listener.set_nonblocking(true)?;
        Ok(listener.into())
    };
    let dns = UdpSocket::bind(place(DNS_PORT))?;
    dns.set_nonblocking(true)?;
    Ok(Listeners {
        tls: listen(TLS_PORT)?,
        http: listen(HTTP_PORT)?,
        other: listen(OTHER_PORT)?,
        dns_udp: dns.into(),
        dns_tcp: listen(DNS_PORT)?,
        refused: nft::listen(SHOWN)?,
    })
}

/// Another set of descriptors of the same sockets.
pub fn share(doors: &Doors) -> io::Result<Doors> {
    Ok(Listeners {
        tls: doors.tls.try_clone()?,
        http: doors.http.try_clone()?,
        other: doors.other.try_clone()?,
        dns_udp: doors.dns_udp.try_clone()?,
        dns_tcp: doors.dns_tcp.try_clone()?,
        refused: doors.refused.try_clone()?,
    })
}

/// Sets the rules of the calling thread's namespace.
pub fn set() -> io::Result<()> {
    set_for(CONNECTIONS)
}

fn set_for(connections: u32) -> io::Result<()> {
    let mut batch = Batch::new(TABLE);
    batch.chain(SOURCES, "filter", libc::NF_INET_PRE_ROUTING, RAW);
    batch.chain(COUNT, "filter", libc::NF_INET_PRE_ROUTING, TRACKED);
    let sources = [
        ("eth0", guest::ETH_GUEST_ADDRESS, REFUSED_ON_LINK),
        ("ctl0", guest::GUEST_ADDRESS, REFUSED_ON_CONTROL),
    ];
    for (link, address, heading) in sources {
        let forged = || Rule::from_link(link).source_is_not(address);
        batch.rule(SOURCES, forged().limit(SHOWN_A_SECOND).log(SHOWN, heading));
        batch.rule(SOURCES, forged().drop());
    }
    // Each rule that counts has a list of its own, so that only one does.
    batch.branch(BEYOND);
    batch.rule(COUNT, Rule::from_link("eth0").connection_starts().more_than(connections).go_to(BEYOND));
    batch.rule(BEYOND, Rule::default().limit(SHOWN_A_SECOND).log(SHOWN, REFUSED_BEYOND));
    batch.rule(BEYOND, Rule::default().drop());
    batch.chain(REDIRECT, "nat", libc::NF_INET_PRE_ROUTING, NAT);
    batch.chain(GUARD, "filter", libc::NF_INET_PRE_ROUTING, FILTER);
    let eth = || Rule::from_link("eth0");
    let tcp = || eth().protocol(libc::IPPROTO_TCP);
    let udp = || eth().protocol(libc::IPPROTO_UDP);
    let icmp = || eth().protocol(libc::IPPROTO_ICMP);
    for rule in [
        tcp().port(443).redirect(TLS_PORT),
        tcp().port(80).redirect(HTTP_PORT),
        tcp().port(53).redirect(DNS_PORT),
        udp().port(53).redirect(DNS_PORT),
        tcp().redirect(OTHER_PORT),
    ] {
        batch.rule(REDIRECT, rule);
    }
    for rule in [
        eth().redirected().accept(),
        icmp().destination(guest::ETH_HOST_ADDRESS).icmp(ECHO).accept(),
        eth().limit(SHOWN_A_SECOND).log(SHOWN, REFUSED_ON_LINK),
        udp().reject(PORT_UNREACHABLE),
        eth().reject(PROHIBITED),
        Rule::from_link("ctl0")
            .protocol(libc::IPPROTO_TCP)
            .destination(guest::HOST_ADDRESS)
            .source_port(guest::PORT)
            .accept(),
        Rule::from_link("ctl0").limit(SHOWN_A_SECOND).log(SHOWN, REFUSED_ON_CONTROL),
        Rule::from_link("ctl0").drop(),
    ] {
        batch.rule(GUARD, rule);
    }
    batch.commit()?;
    for (state, seconds) in TIMEOUTS {
        let path = format!("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_{state}");
        // With the usual ones a flood only costs more for a while.
        if let Err(error) = std::fs::write(&path, seconds) {
            tracing::debug!(%error, path, "a namespace keeps the usual timeout");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::fd::AsRawFd, process::Command};

    #[test]
    fn a_namespace_has_the_rules_and_the_listeners() {
        berth_sys::needs_root!();
        // A thread in a namespace of its own: nobody else's rules are there.
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            for words in [
                "link add eth0 type veth peer name eth1",
                "address add 10.77.0.1/24 dev eth0",
                "link set eth0 up",
            ] {
                assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success());
            }
            set().unwrap();
            drop(doors().unwrap());
            // A dead hostd's successor makes both again.
            set().unwrap();
            share(&doors().unwrap()).unwrap();
            let listed = Command::new("nft").args(["list", "ruleset"]).output();
            let Ok(listed) = listed else { return };
            let text = String::from_utf8(listed.stdout).unwrap();
            for line in [
                "iifname \"eth0\" tcp dport 443 redirect to :10443",
                "iifname \"eth0\" udp dport 53 redirect to :10053",
                "iifname \"eth0\" meta l4proto 6 redirect to :10000",
                "iifname \"eth0\" ct status dnat accept",
                "ip daddr 10.77.0.1 icmp type echo-request accept",
                "iifname \"eth0\" limit rate 10/second burst 10 packets log prefix \"link\" group 77",
                "iifname \"eth0\" meta l4proto 17 reject",
                "iifname \"eth0\" reject with icmp 13",
                "iifname \"ctl0\" ip daddr 169.254.77.1 tcp sport 7 accept",
                "iifname \"ctl0\" drop",
                "iifname \"eth0\" ip saddr != 10.77.0.2 drop",
                "iifname \"ctl0\" ip saddr != 169.254.77.2 drop",
                "iifname \"eth0\" ct state new ct count over 16384 goto beyond",
                "limit rate 10/second burst 10 packets log prefix \"beyond\" group 77\n\t\tdrop\n",
            ] {
                let plain = |text: &str| {
                    text.replace("tcp", "6").replace("udp", "17").replace("admin-prohibited", "13")
                };
                assert!(plain(&text).contains(&plain(line)), "no {line} in\n{text}");
            }
        })
        .join()
        .unwrap();
    }

    /// Packets as a guest's root writes them: SYNs from any address, to any place.
    fn flood(from: &str, count: u16) {
        const SYNS: &str = r#"
import socket, struct, sys
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
raw.setsockopt(socket.IPPROTO_IP, socket.IP_HDRINCL, 1)
source, target = socket.inet_aton(sys.argv[1]), socket.inet_aton("192.0.2.9")
def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff
for number in range(int(sys.argv[2])):
    tcp = struct.pack("!HHIIBBHHH", 20000 + number, 9100, 1, 0, 5 << 4, 2, 65535, 0, 0)
    total = checksum(source + target + struct.pack("!BBH", 0, 6, len(tcp)) + tcp)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, 6, 0, source, target)
    raw.sendto(ip + tcp[:16] + struct.pack("!H", total) + tcp[18:], ("192.0.2.9", 0))
"#;
        let count = count.to_string();
        let sent = Command::new("python3").args(["-c", SYNS, from, &count]).status().unwrap();
        assert!(sent.success());
    }

    #[test]
    fn forged_sources_are_not_tracked_and_true_ones_up_to_a_limit() {
        berth_sys::needs_root!();
        const LIMIT: u32 = 50;
        let ip = |words: &str| {
            assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "ip {words}");
        };
        let test = move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let machine = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            ip("link add eth0 type veth peer name guest0");
            ip("address add 10.77.0.1/24 dev eth0");
            ip("link set eth0 up");
            // A router for whatever the guest says it is; nothing is forwarded.
            std::fs::write("/proc/sys/net/ipv4/conf/eth0/rp_filter", "0").unwrap();
            std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
            set_for(LIMIT).unwrap();
            let doors = doors().unwrap();
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let guest = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            let enter = |namespace: &std::fs::File| {
                nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            };
            enter(&machine);
            ip(&format!("link set guest0 netns /proc/{}/fd/{}", std::process::id(), guest.as_raw_fd()));
            enter(&guest);
            ip("address add 10.77.0.2/24 dev guest0");
            ip("link set guest0 up");
            ip("route add default via 10.77.0.1");
            // As an attacker's, which leaves connections half open.
            for rule in [
                "add table ip guest",
                "add chain ip guest output { type filter hook output priority 0 ; }",
                "add rule ip guest output tcp flags & rst == rst drop",
            ] {
                assert!(Command::new("nft").arg(rule).status().unwrap().success(), "nft {rule}");
            }
            let tracked = || {
                enter(&machine);
                let count = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
                enter(&guest);
                count.trim().parse::<u32>().unwrap()
            };
            flood("10.99.1.1", 200);
            assert_eq!(tracked(), 0, "of forged packets nothing is kept");
            flood("10.77.0.2", 20);
            assert_eq!(tracked(), 20, "true ones are tracked");
            flood("10.77.0.2", 400);
            assert!((20..=LIMIT + 1).contains(&tracked()), "{} are tracked", tracked());
            // Said why, a few times only.
            let mut shown = (0, 0);
            let mut bytes = [0; 8 << 10];
            while let Ok(count) = nix::sys::socket::recv(
                doors.refused.as_raw_fd(),
                &mut bytes,
                nix::sys::socket::MsgFlags::MSG_DONTWAIT,
            ) {
                let said =
                    |heading: &str| bytes[..count].windows(heading.len()).any(|at| at == heading.as_bytes());
                shown.0 += u32::from(said(REFUSED_ON_LINK));
                shown.1 += u32::from(said(REFUSED_BEYOND));
            }
            let few = 1..=SHOWN_A_SECOND * 5;
            assert!(few.contains(&shown.0) && few.contains(&shown.1), "{shown:?} were shown");
        };
        std::thread::spawn(test).join().unwrap();
    }
}
