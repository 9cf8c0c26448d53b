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
//! What the kernel refuses here it shows to the bridge, a few packets a second, for
//! the audit log.
//!
//! Every TCP connection is redirected, one to a listener's own port too: it
//! arrives with its original destination, which the bridge refuses. Nothing is
//! forwarded, for there is no route and forwarding is off.

use super::nft::{self, Batch, Rule};
use berth_egress::control::{Listeners, REFUSED_ON_CONTROL, REFUSED_ON_LINK};
use berth_guest_protocol as guest;
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket},
    os::fd::OwnedFd,
};

const TABLE: &str = "berth";
const REDIRECT: &str = "redirect";
const GUARD: &str = "guard";
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
    let mut batch = Batch::new(TABLE);
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
    batch.commit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_namespace_has_the_rules_and_the_listeners() {
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
}
