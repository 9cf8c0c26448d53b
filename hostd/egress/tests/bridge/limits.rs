//! One machine cannot take what others need.

use crate::support::{Server, VALUE, World, guest::Guest, header, secret};
use berth_egress::control::Outcome;
use berth_types::MachineId;
use std::{io::Write, net::TcpStream};

#[test]
fn ten_thousand_connections_do_not_hurt_the_neighbour() {
    berth_sys::needs_root!();
    let mut world = World::with(
        vec![secret("openai", &["api.example"], vec![header("x-key", "{}")], VALUE)],
        |settings| settings.limits.connections = 500,
    );
    let server = Server::start(&world, "api.example", "198.51.100.10:443");
    let neighbour = Guest::new(
        world.directory.path(),
        &format!("{}{}", world.settings.authority_certificate, world.public.pem()),
    );
    world.link(&MachineId::random(), &neighbour);
    // Held open and silent: waiting for a hello that does not come, then passed on.
    let mut held: Vec<TcpStream> = Vec::new();
    let connected = world.guest.namespace.run(|| {
        let mut connected = Vec::new();
        for _ in 0..10_000 {
            match TcpStream::connect("198.51.100.10:443") {
                Ok(stream) => connected.push(stream),
                Err(_) => break,
            }
            // Those that were reset are let go, as a real flood would have to.
            if connected.len() >= 900 {
                connected.retain(|stream: &TcpStream| {
                    stream.set_nonblocking(true).unwrap();
                    !matches!(stream.peek(&mut [0]), Err(error) if error.kind() != std::io::ErrorKind::WouldBlock)
                });
            }
        }
        connected
    });
    held.extend(connected);
    neighbour.curl(&["https://api.example/"]).is("200");
    assert_eq!(server.last().headers["x-key"], VALUE);
    let decision = world.decision(|decision| decision.rule.starts_with("limit connections"));
    assert_eq!(decision.verdict, Outcome::Refused);
    drop(held);
    // And the machine itself recovers.
    let mut code = String::new();
    for _ in 0..20 {
        let ran = world.guest.curl(&["https://api.example/"]);
        code = ran.code().to_owned();
        if code == "200" {
            break;
        }
    }
    assert_eq!(code, "200");
}

#[test]
fn heads_and_tables_are_bounded() {
    berth_sys::needs_root!();
    let mut world = World::new(vec![secret("openai", &["api.example"], vec![header("x-key", "{}")], VALUE)]);
    let _server = Server::start(&world, "api.example", "198.51.100.10:443");
    // Just too large for the bridge, and just not for curl.
    let mut headers = vec![format!("X-Large: {}", "x".repeat(62_500))];
    headers.extend((100..200).map(|number| format!("x-{number}: y")));
    let headers: Vec<&str> = headers.iter().flat_map(|header| ["-H", header]).collect();
    let large = format!("X-Large: {}", "x".repeat(90_000));
    for (version, headers) in [("--http1.1", vec!["-H", &large]), ("--http2", headers)] {
        let ran = world.guest.curl(&[&[version, "https://api.example/"], &*headers].concat());
        assert_ne!(ran.code(), "200", "{version}");
        assert!(world.refused("secret openai").reason.contains("too large"));
    }
    // A hello that never ends.
    let mut stream = world.guest.connect("198.51.100.10:443").unwrap();
    let _ = stream.write_all(&[&[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc][..], &[0; 8192]].concat());
    drop(stream);
    world.guest.curl(&["https://api.example/"]).is("200");
}
