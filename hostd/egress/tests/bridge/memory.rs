//! One guest that holds back uploads does not take the memory of all.

use crate::support::{Server, VALUE, World, guest::Guest, secret, tls::client};
use berth_types::{MachineId, egress::Projection};
use rustls::pki_types::ServerName;
use std::{
    io::{Read, Write},
    sync::Arc,
    time::Duration,
};

const UPLOADS: usize = 128;
/// The largest body in which placeholders are replaced.
const BODY: usize = 1 << 20;
/// What the bridge may need for it all: the budget of one machine, what TLS and
/// HTTP keep of each connection, and the memory that the allocator does not give back.
const MOST: u64 = 64 << 20;

fn resident(world: &World) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.bridge_pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

type Upload = rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream>;

/// Sends all of a body but its last byte, as far as the bridge takes it.
fn hold_back(world: &World, config: &Arc<rustls::ClientConfig>) -> Option<Upload> {
    let name = ServerName::try_from("api.example").unwrap();
    let connection = rustls::ClientConnection::new(config.clone(), name).unwrap();
    let stream = world.guest.connect("198.51.100.10:443").unwrap();
    // What is not taken by then waits for the budget.
    stream.set_write_timeout(Some(Duration::from_secs(3))).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, stream);
    let head = format!("POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: {BODY}\r\n\r\n");
    let body = vec![b'x'; BODY - 1];
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
    sent.and_then(|()| stream.flush()).ok().map(|()| stream)
}

#[test]
fn uploads_that_are_held_back_have_a_limit_and_a_bystander_passes() {
    berth_sys::needs_root!();
    let world = World::new(vec![secret("KEY", &["api.example"], vec![Projection::Placeholder], VALUE)]);
    let server = Server::start(&world, "api.example", "198.51.100.10:443");
    let bystander = Guest::new(
        world.directory.path(),
        &format!("{}{}", world.settings.authority_certificate, world.public.pem()),
    );
    world.link(&MachineId::random(), &bystander);
    let placeholder = world.placeholder();
    let upload = |guest: &Guest, version: &str| {
        let data = format!("key={placeholder}");
        guest.curl(&[version, "-d", &data, "https://api.example/"]).is("200");
        assert_eq!(server.last().body, format!("key={VALUE}"));
    };
    upload(&world.guest, "--http1.1");
    let before = resident(&world);
    let config = Arc::new(client(&world, b"http/1.1", &[]));
    let held: Vec<Upload> = std::thread::scope(|scope| {
        let uploads: Vec<_> = (0..UPLOADS).map(|_| scope.spawn(|| hold_back(&world, &config))).collect();
        uploads.into_iter().filter_map(|upload| upload.join().unwrap()).collect()
    });
    assert!(!held.is_empty(), "nothing was taken");
    let grown = resident(&world).saturating_sub(before);
    assert!(grown < MOST, "{} of {UPLOADS} bodies are held, with {grown} bytes", held.len());
    upload(&bystander, "--http1.1");
    upload(&bystander, "--http2");
    // Bodies whose last byte comes are sent on, and their room is others'.
    let count = held.len();
    std::thread::scope(|scope| {
        for mut upload in held {
            scope.spawn(move || {
                upload.sock.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                upload.write_all(b"x").unwrap();
                let mut answer = [0; 12];
                upload.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"HTTP/1.1 200");
            });
        }
    });
    assert_eq!(server.seen().iter().filter(|seen| seen.body.len() == BODY).count(), count);
    upload(&world.guest, "--http1.1");
}

#[test]
fn what_does_not_fit_over_http2_is_replaced_on_its_way() {
    berth_sys::needs_root!();
    let projections = vec![Projection::Placeholder];
    let world = World::with(vec![secret("KEY", &["api.example"], projections, VALUE)], |settings| {
        settings.limits.machine_bodies_bytes = 1;
    });
    let server = Server::start(&world, "api.example", "198.51.100.10:443");
    let placeholder = world.placeholder();
    // The first is collected, whatever its size; while it is held back a second goes by.
    let script = format!(
        "import subprocess, sys\n\
        data = 'key={placeholder}&' + 'x' * 300000 + '&{placeholder}'\n\
        open(sys.argv[1], 'w').write(data)\n"
    );
    let file = world.directory.path().join("body");
    let file = file.to_str().unwrap();
    assert_eq!(world.guest.run("python3", &["-c", &script, file]).status, 0);
    let config = Arc::new(client(&world, b"http/1.1", &[]));
    let held = hold_back(&world, &config);
    assert!(held.is_some());
    let data = format!("@{file}");
    let by_itself = (0..50).any(|_| {
        let ran = world.guest.curl(&["--http2", "--data-binary", &data, "https://api.example/"]);
        ran.is("200").lacks(VALUE);
        let seen = server.last();
        assert_eq!(seen.body, format!("key={VALUE}&{}&{VALUE}", "x".repeat(300_000)));
        // As soon as the other one is in the bridge.
        !seen.headers.contains_key("content-length")
    });
    assert!(by_itself, "nothing is held back");
}
