//! What no secret names goes by untouched, as the policy allows.

use crate::support::{Server, VALUE, World, guest::GATEWAY, header, secret};
use berth_egress::control::Protocol;
use berth_types::egress::EgressMode;
use std::{
    io::{Read, Write},
    net::TcpListener,
};

/// A server that speaks first, then echoes one message.
fn greeter(world: &World, address: &str) {
    let listener: TcpListener = world.servers.listen(address.parse().unwrap());
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0u8; 64];
                stream.write_all(b"220 ready\n").unwrap();
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    stream.write_all(&buffer[..count]).unwrap();
                }
            });
        }
    });
}

fn read_some(stream: &mut impl Read) -> String {
    let mut buffer = [0u8; 64];
    let count = stream.read(&mut buffer).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

#[test]
fn a_server_may_speak_first_on_any_port() {
    berth_sys::needs_root!();
    let mut world = World::new(Vec::new());
    for port in [22, 80, 443, 5432] {
        greeter(&world, &format!("198.51.100.11:{port}"));
        let mut stream = world.guest.connect(&format!("198.51.100.11:{port}")).unwrap();
        assert_eq!(read_some(&mut stream), "220 ready\n", "port {port}");
        stream.write_all(b"hello").unwrap();
        assert_eq!(read_some(&mut stream), "hello");
        drop(stream);
        let decision = world.allowed("open");
        assert_eq!((decision.port, decision.up, decision.down), (Some(port), 5, 15));
        assert_eq!(decision.protocol, Protocol::Tcp);
    }
}

#[test]
fn tls_that_no_rule_names_is_not_opened() {
    berth_sys::needs_root!();
    let mut world = World::new(vec![secret("openai", &["api.example"], vec![header("x-key", "{}")], VALUE)]);
    let server = Server::start(&world, "other.example", "198.51.100.11:443");
    let public = world.directory.path().join("public.pem");
    std::fs::write(&public, world.public.pem()).unwrap();
    // Trusts the server's own authority only: the bridge cannot have been in between.
    let ran = world.guest.curl(&["--cacert", public.to_str().unwrap(), "https://other.example/"]);
    ran.is("200");
    assert!(!server.last().headers.contains_key("x-key"));
    let decision = world.decision(|decision| decision.protocol == Protocol::Tls);
    assert_eq!(decision.host.unwrap().as_str(), "other.example");
    let ran = world.guest.curl(&["--cacert", public.to_str().unwrap(), "https://api.example/"]);
    assert_eq!(ran.status, 60, "the bridge's certificate is another authority's: {ran:?}");
}

#[test]
fn an_allowlist_closes_what_it_no_longer_names() {
    berth_sys::needs_root!();
    let mut world = World::new(Vec::new());
    let _server = Server::start(&world, "other.example", "198.51.100.11:443");
    greeter(&world, "198.51.100.11:5432");
    world.update(|terms| {
        terms.policy.mode = EgressMode::Allowlist;
        terms.policy.allow = vec!["other.example".parse().unwrap()];
    });
    world.guest.curl(&["https://other.example/"]).is("200");
    let ran = world.guest.curl(&["https://api.example/"]);
    assert_eq!(ran.status, 6, "a name that is not allowed does not resolve: {ran:?}");
    world.refused("allowlist");
    // By address it is the name's, because the host resolved it.
    let mut kept = world.guest.connect("198.51.100.11:5432").unwrap();
    assert_eq!(read_some(&mut kept), "220 ready\n");
    // It may be reset before it looks connected.
    let other = world.guest.connect("198.51.100.12:5432").and_then(|mut stream| stream.read(&mut [0]));
    assert_eq!(other.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    world.refused("allowlist");
    world.update(|terms| terms.policy.deny = vec!["other.example:5432".parse().unwrap()]);
    assert_eq!(kept.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    let decision = world.refused("deny other.example:5432");
    assert_eq!((decision.down, decision.reason.as_str()), (10, "closed: no longer allowed"));
    world.guest.curl(&["https://other.example/"]).is("200");
    world.update(|terms| terms.policy.mode = EgressMode::Closed);
    assert_ne!(world.guest.curl(&["https://other.example/"]).status, 0);
    world.refused("closed");
}

#[test]
fn a_machine_learns_what_it_may_know_of_itself() {
    berth_sys::needs_root!();
    let mut world = World::new(Vec::new());
    world.update(|terms| terms.policy.mode = EgressMode::Closed);
    world.guest.curl(&["http://berth.internal/"]).is("200").has(r#"{"name":"dev"}"#);
    world.guest.curl(&["http://berth.internal/etc"]).is("404");
    world.guest.curl(&["-d", "x", "http://berth.internal/"]).is("405");
    // Nothing else is at the gateway, whatever the policy.
    world.update(|terms| {
        terms.policy.mode = EgressMode::Open;
        terms.policy.allow = vec!["10.0.0.0/8".parse().unwrap()];
    });
    for port in [443, 2222, 4443] {
        let refused = world.guest.connect(&format!("{GATEWAY}:{port}")).and_then(|mut stream| {
            stream.write_all(b"\x16\x03\x01")?;
            stream.read(&mut [0])
        });
        assert!(refused.is_err(), "port {port}");
        world.refused("an address of the host");
    }
}
