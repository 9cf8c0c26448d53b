//! Connections into a guest and out of it, on this host.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use berth_guest_protocol::{Incoming, Listen, Open, Opened, RefusedKind, Target};
use support::{Guest, Stream};

fn connect(guest: &Guest, host: &str, port: u16) -> Stream {
    let (stream, reply) = guest.open(Open::Connect(Target::Tcp { host: host.into(), port }));
    assert_eq!(reply.unwrap(), Opened::Connected);
    stream
}

fn incoming(stream: &mut Stream) -> Incoming {
    stream.message()
}

fn claim(guest: &Guest, ticket: u64) -> Stream {
    let (stream, reply) = guest.open(Open::Accept { ticket });
    assert_eq!(reply.unwrap(), Opened::Connected);
    stream
}

#[test]
fn a_connection_carries_bytes_and_half_closes() {
    let guest = Guest::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        peer.write_all(&all).unwrap();
    });
    let mut stream = connect(&guest, "localhost", port);
    let data = vec![42; 3_000_000];
    stream.0.write_all(&data).unwrap();
    stream.close_write();
    let mut back = Vec::new();
    stream.0.read_to_end(&mut back).unwrap();
    server.join().unwrap();
    assert!(back == data, "{}", back.len());
}

#[test]
fn what_cannot_be_reached_is_refused() {
    let guest = Guest::start();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let target = |host: &str| Open::Connect(Target::Tcp { host: host.into(), port: free });
    for host in ["127.0.0.1", "localhost", "no-such-host.invalid"] {
        let refused = guest.open(target(host)).1.unwrap_err();
        assert_eq!(refused.kind, RefusedKind::Unreachable, "{host}: {}", refused.message);
    }
    let refused = guest.open(target("-x; rm")).1.unwrap_err();
    assert_eq!(refused.kind, RefusedKind::Malformed);
    let path = "/nonexistent/socket".to_owned();
    let refused = guest.open(Open::Connect(Target::Unix { path })).1.unwrap_err();
    assert_eq!(refused.kind, RefusedKind::Unreachable);
    let refused = guest.open(Open::Accept { ticket: 99 }).1.unwrap_err();
    assert_eq!(refused.kind, RefusedKind::Unreachable);
}

#[test]
fn a_listener_announces_and_ends_with_its_stream() {
    let guest = Guest::start();
    let listen = Listen::Tcp { host: "localhost".into(), port: 0 };
    let (mut stream, reply) = guest.open(Open::Listen(listen));
    let Ok(Opened::Listening { port, .. }) = reply else { panic!("{reply:?}") };
    let mut outside = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let announced = incoming(&mut stream);
    assert_eq!(announced.host, "127.0.0.1");
    assert_eq!(announced.port, outside.local_addr().unwrap().port());
    let mut inside = claim(&guest, announced.ticket);
    outside.write_all(b"ping").unwrap();
    let mut four = [0; 4];
    inside.0.read_exact(&mut four).unwrap();
    inside.0.write_all(b"pong").unwrap();
    outside.read_exact(&mut four).unwrap();
    assert_eq!(&four, b"pong");
    assert!(guest.open(Open::Accept { ticket: announced.ticket }).1.is_err(), "a ticket is good once");

    let mut unclaimed = TcpStream::connect(("127.0.0.1", port)).unwrap();
    incoming(&mut stream);
    drop(stream);
    assert_eq!(unclaimed.read(&mut four).unwrap_or(0), 0, "an unclaimed connection is closed");
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(("127.0.0.1", port)).is_ok() {
        assert!(Instant::now() < deadline, "still listening");
    }
    inside.0.shutdown(Shutdown::Both).unwrap();
}

#[test]
fn a_socket_and_an_agent_are_the_users_alone() {
    let guest = Guest::start();
    let path = std::env::temp_dir().join(format!("berth-forward-{}", std::process::id()));
    let text = path.to_str().unwrap().to_owned();
    let (mut stream, reply) = guest.open(Open::Listen(Listen::Unix { path: text.clone() }));
    assert_eq!(reply.unwrap(), Opened::Listening { port: 0, path: text.clone() });
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let refused = guest.open(Open::Listen(Listen::Unix { path: text.clone() })).1.unwrap_err();
    assert_eq!(refused.kind, RefusedKind::Failed);
    let (_, through) = guest.open(Open::Connect(Target::Unix { path: text }));
    assert_eq!(through.unwrap(), Opened::Connected);
    assert_eq!(incoming(&mut stream).host, "");
    drop(stream);

    let (mut stream, reply) = guest.open(Open::Listen(Listen::Agent));
    let Ok(Opened::Listening { path: agent, .. }) = reply else { panic!("{reply:?}") };
    let directory = Path::new(&agent).parent().unwrap().to_owned();
    assert!(agent.starts_with("/tmp/ssh-"), "{agent}");
    assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let _client = UnixStream::connect(&agent).unwrap();
    claim(&guest, incoming(&mut stream).ticket);
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(10);
    while directory.exists() || path.exists() {
        assert!(Instant::now() < deadline, "something is left behind");
        thread::sleep(Duration::from_millis(5));
    }
}
