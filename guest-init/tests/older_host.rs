//! Today's guest and the hosts of versions before: spoken with the frozen code, which takes
//! nothing that it did not take then.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
};

use berth_guest_protocol::frozen::v1;
use support::Guest;

/// A stream as a host of version 1 opens it.
struct Stream(TcpStream);

impl Stream {
    fn open(guest: &Guest, open: v1::Open) -> (Self, v1::Reply) {
        let mut stream = Self(guest.raw());
        stream.send(v1::Kind::Open, &v1::Opening { generation: v1::GENERATION, open });
        let (kind, payload) = stream.receive().unwrap();
        assert_eq!(kind, v1::Kind::Reply, "and no hello before it");
        (stream, v1::decode(&payload).unwrap())
    }

    fn send<T: serde::Serialize>(&mut self, kind: v1::Kind, message: &T) {
        self.0.write_all(&v1::encode(kind, message).unwrap()).unwrap();
    }

    fn receive(&mut self) -> Option<(v1::Kind, Vec<u8>)> {
        let mut head = [0; v1::HEADER];
        self.0.read_exact(&mut head).ok()?;
        let header = v1::parse_header(head).unwrap();
        let mut payload = vec![0; header.length];
        self.0.read_exact(&mut payload).ok()?;
        Some((header.kind, payload))
    }

    fn ask(&mut self, request: &v1::Control) -> v1::Answer {
        self.send(v1::Kind::Control, request);
        let (kind, payload) = self.receive().unwrap();
        assert_eq!(kind, v1::Kind::Answer);
        v1::decode(&payload).unwrap()
    }
}

#[test]
fn a_host_of_version_1_runs_commands() {
    let guest = Guest::start();
    let command = v1::Command::Line(b"cat; echo $A >&2; exit 3".to_vec());
    let exec = v1::Exec { command, env: vec![("A".into(), "b".into())], pty: None };
    let (mut stream, reply) = Stream::open(&guest, v1::Open::Exec(exec));
    assert!(matches!(reply, Ok(v1::Opened::Exec { pid: 1.. })), "{reply:?}");
    stream.0.write_all(&[&v1::header(v1::Kind::Data, 5)[..], b"hello"].concat()).unwrap();
    stream.send(v1::Kind::Event, &v1::Event::Signal("CONT".into()));
    stream.0.write_all(&v1::header(v1::Kind::Eof, 0)).unwrap();
    let (mut out, mut err, mut exit) = (Vec::new(), Vec::new(), None);
    while let Some((kind, payload)) = stream.receive() {
        match kind {
            v1::Kind::Data => out.extend(payload),
            v1::Kind::Errors => err.extend(payload),
            v1::Kind::Exit => exit = Some(v1::decode(&payload).unwrap()),
            other => assert_eq!(other, v1::Kind::Eof),
        }
    }
    assert_eq!((out, err, exit), (b"hello".to_vec(), b"b\n".to_vec(), Some(v1::Exit::Status(3))));
}

#[test]
fn a_host_of_version_1_forwards() {
    let guest = Guest::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        std::io::copy(&mut peer.try_clone().unwrap(), &mut peer).unwrap();
    });
    let target = v1::Target::Tcp { host: "127.0.0.1".into(), port };
    let (mut stream, reply) = Stream::open(&guest, v1::Open::Connect(target));
    assert_eq!(reply, Ok(v1::Opened::Connected));
    stream.0.write_all(b"there and back").unwrap();
    stream.0.shutdown(Shutdown::Write).unwrap();
    let mut back = String::new();
    stream.0.read_to_string(&mut back).unwrap();
    server.join().unwrap();
    assert_eq!(back, "there and back");

    let listen = v1::Listen::Tcp { host: "localhost".into(), port: 0 };
    let (mut listening, reply) = Stream::open(&guest, v1::Open::Listen(listen));
    let Ok(v1::Opened::Listening { port, .. }) = reply else { panic!("{reply:?}") };
    let mut outside = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (kind, payload) = listening.receive().unwrap();
    assert_eq!(kind, v1::Kind::Incoming);
    let incoming: v1::Incoming = v1::decode(&payload).unwrap();
    let (mut inside, reply) = Stream::open(&guest, v1::Open::Accept { ticket: incoming.ticket });
    assert_eq!(reply, Ok(v1::Opened::Connected));
    outside.write_all(b"ping").unwrap();
    inside.0.read_exact(&mut [0; 4]).unwrap();
    let (_, refused) = Stream::open(&guest, v1::Open::Accept { ticket: incoming.ticket });
    assert_eq!(refused.unwrap_err().kind, v1::RefusedKind::Unreachable);
}

#[test]
fn a_host_of_version_1_serves_files() {
    let guest = Guest::start();
    let exec = v1::Exec { command: v1::Command::Sftp, env: Vec::new(), pty: None };
    let (mut stream, reply) = Stream::open(&guest, v1::Open::Exec(exec));
    reply.unwrap();
    stream.0.write_all(&v1::header(v1::Kind::Data, 9)).unwrap();
    stream.0.write_all(&[0, 0, 0, 5, 1, 0, 0, 0, 3]).unwrap();
    let (kind, version) = stream.receive().unwrap();
    assert_eq!((kind, version[4]), (v1::Kind::Data, 2));
}

/// The requests of a life, all of which version 1 has. On a host most of them do nothing.
#[test]
fn a_host_of_version_1_controls() {
    let guest = Guest::start();
    if guest.is_machine() {
        return println!("skipped: it would set a machine's clock");
    }
    let (mut stream, reply) = Stream::open(&guest, v1::Open::Control);
    assert_eq!(reply, Ok(v1::Opened::Control));
    let variables = vec![("A".into(), "b".into()), (v1::KNOWN_HOSTS.into(), "h k\n".into())];
    let equip = v1::Equip { authority: "pem".into(), roots: String::new(), environment: variables };
    let repair =
        v1::Repair { clock: 1, entropy: [7; 32], hostname: "old".into(), renew_identity: false, disk: 0 };
    for request in [
        v1::Control::Ping,
        v1::Control::Equip(equip),
        v1::Control::Rehearse,
        v1::Control::Freeze,
        v1::Control::Thaw,
        v1::Control::Repair(repair),
    ] {
        assert_eq!(stream.ask(&request), v1::Answer::Done, "{request:?}");
    }
    let answer = stream.ask(&v1::Control::Vitals);
    assert!(matches!(&answer, v1::Answer::Vitals(vitals) if vitals.memory_total > 0), "{answer:?}");
}

#[test]
fn version_1_is_as_strict_as_it_was() {
    let guest = Guest::start();
    // A field behind an opening, which in version 1 is no opening.
    let mut stream = Stream(guest.raw());
    stream.0.write_all(&[4, 0, 0, 0, 1, 1, 0, 0]).unwrap();
    let (_, payload) = stream.receive().unwrap();
    let reply: v1::Reply = v1::decode(&payload).unwrap();
    assert_eq!(reply.unwrap_err().kind, v1::RefusedKind::Malformed);
    // And one behind a request.
    let (mut stream, reply) = Stream::open(&guest, v1::Open::Control);
    reply.unwrap();
    stream.0.write_all(&[3, 0, 0, 0, 9, 0, 0]).unwrap();
    assert!(stream.receive().is_none());
}
