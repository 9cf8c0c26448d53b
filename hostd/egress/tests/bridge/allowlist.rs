//! An allowlist is about names, and many names may be served at one address: what a
//! connection says of itself has to be allowed too.

use crate::support::{
    Plain, Server, World,
    tls::{hello, server_name},
};
use berth_egress::control::Protocol;
use berth_types::egress::{EgressMode, HostName};
use std::io::{ErrorKind, Read, Write};

const ADDRESS: &str = "198.51.100.11";

/// `other.example` is allowed, and has been resolved.
fn world() -> (World, Server) {
    let mut world = World::new(Vec::new());
    let server = Server::start(&world, "other.example", "198.51.100.11:443");
    allow(&mut world, &["other.example"]);
    world.guest.run("getent", &["hosts", "other.example"]);
    (world, server)
}

fn allow(world: &mut World, rules: &[&str]) {
    world.update(|terms| {
        terms.policy.mode = EgressMode::Allowlist;
        terms.policy.allow = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    });
}

/// What comes back first for these bytes: nothing if the connection is reset.
fn answer(world: &World, port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut answer = vec![0; 4096];
    // It may be reset at any of these steps.
    let read = world.guest.connect(&format!("{ADDRESS}:{port}")).and_then(|mut stream| {
        stream.write_all(bytes)?;
        stream.read(&mut answer)
    });
    answer.truncate(read.unwrap_or(0));
    answer
}

#[test]
fn a_foreign_tls_name_does_not_pass_at_an_allowed_address() {
    berth_sys::needs_root!();
    let (mut world, server) = world();
    world.guest.curl(&["https://other.example/"]).is("200");
    let before = server.seen().len();
    let ran = world.guest.curl(&[
        "-k",
        "--connect-to",
        "evil.example:443:other.example:443",
        "https://evil.example/",
    ]);
    assert_ne!(ran.status, 0, "{ran:?}");
    let refused = world.refused("allowlist");
    assert_eq!(refused.protocol, Protocol::Tls);
    // The log has both: whose address it is, and what was said.
    assert_eq!(refused.host.unwrap().as_str(), "other.example");
    assert_eq!(refused.claimed.unwrap().as_str(), "evil.example");
    assert!(refused.reason.contains("evil.example"), "{}", refused.reason);
    // An allowed name at an address that it does not lead to.
    let ran = world.guest.curl(&["--resolve", "other.example:443:198.51.100.12", "https://other.example/"]);
    assert_ne!(ran.status, 0, "{ran:?}");
    assert!(world.refused("allowlist").reason.contains("not allowed at 198.51.100.12"));
    assert_eq!(server.seen().len(), before, "nothing of it reached the server");
}

#[test]
fn without_a_readable_tls_name_only_an_address_rule_counts() {
    berth_sys::needs_root!();
    let (mut world, server) = world();
    let named = hello(Some("other.example"), &[]);
    let twice = hello(Some("other.example"), &[server_name("evil.example")]);
    let garbled = hello(None, &[server_name("other.example\0.evil")]);
    let cut = &named[..named.len() / 2];
    let nameless = hello(None, &[]);
    for (what, bytes) in [
        ("no name", nameless.as_slice()),
        ("two names", &twice),
        ("a name that is none", &garbled),
        ("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n"),
        ("plain HTTP", b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"),
        ("an address", &hello(None, &[server_name(ADDRESS)])),
    ] {
        assert!(answer(&world, 443, bytes).is_empty(), "{what}");
        let refused = world.refused("allowlist");
        assert!(refused.reason.contains("names no host"), "{what}: {refused:?}");
        assert_eq!(refused.host.unwrap().as_str(), "other.example", "{what}");
    }
    // One that hangs up before its name is whole.
    let mut stream = world.guest.connect(&format!("{ADDRESS}:443")).unwrap();
    stream.write_all(cut).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    world.refused("allowlist");
    assert!(server.seen().is_empty());
    // Allowed by name it is answered; by address so is everything there.
    assert_eq!(answer(&world, 443, &named).first(), Some(&22), "a handshake");
    allow(&mut world, &["198.51.100.11"]);
    assert_eq!(answer(&world, 443, &nameless).first(), Some(&22), "a handshake");
    world.allowed("allow 198.51.100.11");
}

#[test]
fn a_foreign_or_missing_host_does_not_pass_at_an_allowed_address() {
    berth_sys::needs_root!();
    let (mut world, _server) = world();
    let plain = Plain::start(&world, "198.51.100.11:80");
    world.guest.curl(&["http://other.example/"]).is("200");
    let before = plain.seen().len();
    for (what, head, claimed) in [
        ("foreign", "GET / HTTP/1.1\r\nHost: evil.example", Some("evil.example")),
        ("in the target", "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example", Some("evil.example")),
        ("absent", "GET / HTTP/1.0", None),
        ("an address", "GET / HTTP/1.1\r\nHost: 198.51.100.11", None),
        ("twice", "GET / HTTP/1.1\r\nHost: other.example\r\nHost: evil.example", None),
        ("two in one", "GET / HTTP/1.1\r\nHost: other.example, evil.example", None),
        ("two opinions", "GET http://other.example/ HTTP/1.1\r\nHost: evil.example", None),
        ("an address of HTTP in a path", "GET /x://other.example/ HTTP/1.0", None),
        ("a path like one", "GET /x://other.example/ HTTP/1.1\r\nHost: evil.example", Some("evil.example")),
        ("only in the target", "GET http://other.example/ HTTP/1.1", None),
        ("another scheme", "GET x://other.example/ HTTP/1.1\r\nHost: other.example", None),
        ("no scheme", "GET other.example/ HTTP/1.1\r\nHost: other.example", None),
        ("the other opinions", "GET http://evil.example/ HTTP/1.1\r\nHost: other.example", None),
        (
            "credentials that look like a host",
            "GET http://other.example:80@evil.example/ HTTP/1.1\r\nHost: other.example",
            None,
        ),
        ("in the Host too", "GET / HTTP/1.1\r\nHost: other.example:80@evil.example", None),
        ("a port that is none", "GET / HTTP/1.1\r\nHost: other.example:evil.example", None),
        ("the same twice", "GET / HTTP/1.1\r\nHost: other.example\r\nHost: other.example", None),
        ("two with a port", "GET / HTTP/1.1\r\nHost: other.example:80, evil.example", None),
        ("no HTTP", "\u{16}\u{3}\u{1}garbage", None),
        ("HTTP/2 by prior knowledge", "PRI * HTTP/2.0", None),
    ] {
        let answer = answer(&world, 80, format!("{head}\r\nConnection: close\r\n\r\n").as_bytes());
        assert!(answer.is_empty(), "{what}: {}", String::from_utf8_lossy(&answer));
        let refused = world.refused("allowlist");
        assert_eq!(refused.host.as_ref().unwrap().as_str(), "other.example", "{what}");
        assert_eq!(refused.claimed.as_ref().map(HostName::as_str), claimed, "{what}: {refused:?}");
    }
    assert_eq!(plain.seen().len(), before, "nothing of it reached the server");
}

#[test]
fn a_path_may_have_an_address_in_it() {
    berth_sys::needs_root!();
    let (mut world, _server) = world();
    let plain = Plain::start(&world, "198.51.100.11:80");
    for line in [
        "GET /x://evil.example/ HTTP/1.1\r\nHost: other.example",
        "GET /http://evil.example/ HTTP/1.1\r\nHost: other.example:80",
        "GET /?to=https://evil.example/ HTTP/1.1\r\nHost: Other.Example",
        "GET //evil.example/ HTTP/1.1\r\nHost: other.example.",
        "GET http://other.example/http://evil.example/ HTTP/1.1\r\nHost: other.example",
        "OPTIONS * HTTP/1.1\r\nHost: other.example",
    ] {
        // As the first request of a connection, and as a later one.
        let head = format!("{line}\r\nConnection: close");
        let before = plain.seen().len();
        for (bytes, answers) in [(format!("{head}\r\n\r\n"), 1), (format!("{line}\r\n\r\n{head}\r\n\r\n"), 2)]
        {
            let mut stream = world.guest.connect(&format!("{ADDRESS}:80")).unwrap();
            stream.write_all(bytes.as_bytes()).unwrap();
            let mut all = String::new();
            stream.read_to_string(&mut all).unwrap();
            assert_eq!(all.matches("200 OK").count(), answers, "{line}: {all}");
            drop(stream);
            world.allowed("allow other.example");
        }
        assert_eq!(plain.seen()[before..], [head.as_str(), line, &head], "as the guest wrote it");
    }
}

#[test]
fn a_later_request_on_a_connection_is_judged_too() {
    berth_sys::needs_root!();
    let (mut world, _server) = world();
    let plain = Plain::start(&world, "198.51.100.11:80");
    let good = "POST /good HTTP/1.1\r\nHost: other.example\r\nContent-Length: 2\r\n\r\nok";
    for (what, then, reason) in [
        ("foreign", "GET /bad HTTP/1.1\r\nHost: evil.example\r\n\r\n", "evil.example"),
        (
            "credentials",
            "GET http://other.example:80@evil.example/bad HTTP/1.1\r\nHost: other.example\r\n\r\n",
            "names no host",
        ),
        ("a path without Host", "GET /bad/x://other.example/ HTTP/1.1\r\n\r\n", "names no host"),
        ("without Host", "GET /bad HTTP/1.1\r\n\r\n", "names no host"),
        (
            "hidden in two lengths",
            "GET /bad HTTP/1.1\r\nHost: other.example\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "two lengths",
        ),
        (
            "through a tunnel",
            "CONNECT other.example:80 HTTP/1.1\r\nHost: other.example:80\r\n\r\n",
            "CONNECT",
        ),
        (
            "after another protocol",
            "GET /up HTTP/1.1\r\nHost: other.example\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nGET /bad HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            "evil.example",
        ),
    ] {
        let before = plain.seen().len();
        let mut stream = world.guest.connect(&format!("{ADDRESS}:80")).unwrap();
        // One after the other, and both in one piece.
        stream.write_all(good.as_bytes()).unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0, "{what}: the good one is answered");
        stream.write_all(format!("{good}{then}").as_bytes()).unwrap();
        assert!(stream.read_to_end(&mut Vec::new()).is_err(), "{what}: it is reset");
        let refused = world.decision(|decision| decision.verdict == berth_egress::control::Outcome::Refused);
        assert!(refused.reason.contains(reason), "{what}: {refused:?}");
        let seen = plain.seen();
        assert!(seen.len() > before && !seen.iter().any(|head| head.contains("/bad")), "{what}: {seen:?}");
    }
    // Allowed by address it is none of the bridge's business.
    allow(&mut world, &["198.51.100.11"]);
    let both = "GET /any HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert!(!answer(&world, 80, both.as_bytes()).is_empty());
}
