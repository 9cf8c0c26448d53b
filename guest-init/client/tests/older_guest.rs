//! Today's host and a guest of version 1, which is the frozen code.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

use berth_guest_client::{Begin, GuestError, Output, Stream, open};
use berth_guest_protocol::{
    Answer, Command, Control, Equip, Event, Exec, Exit, Kind, Listen, Open, Opened, Pty, RefusedKind, Target,
    Version, encode, frozen::v1, header,
};
use std::time::Duration;
use tokio::{io::AsyncWriteExt, net::TcpStream};

const LIMIT: Duration = Duration::from_secs(60);

async fn opened(guest: &v1::Guest, what: Open) -> Stream {
    let stream = open(TcpStream::connect(guest.address).await.unwrap(), what, LIMIT).await.unwrap();
    assert_eq!(stream.version, Version::ONE);
    stream
}

fn exec(command: Command) -> Exec {
    let pty = Pty { term: "xterm".into(), columns: 80, rows: 24, width: 0, height: 0, modes: vec![(1, 3)] };
    Exec { command, env: vec![("A".into(), "b".into())], pty: Some(pty) }
}

/// Both outputs and the exit, until the guest ends the stream.
async fn outcome(stream: &mut Stream) -> (String, String, Option<Exit>) {
    let (mut data, mut errors, mut exit) = (Vec::new(), Vec::new(), None);
    loop {
        match stream.frames.output().await {
            Ok(Output::Data(part)) => data.extend(part),
            Ok(Output::Errors(part)) => errors.extend(part),
            Ok(Output::Eof) => {}
            Ok(Output::Exit(how)) => exit = Some(how),
            Err(GuestError::Ended) => break,
            Err(error) => panic!("{error}"),
        }
    }
    (String::from_utf8(data).unwrap(), String::from_utf8(errors).unwrap(), exit)
}

#[tokio::test]
async fn it_runs_commands() {
    let guest = v1::Guest::start();
    let mut stream = opened(&guest, Open::Exec(exec(Command::Line(b"make".into())))).await;
    assert_eq!(stream.opened, Opened::Exec { pid: 412 });
    let (out, err, exit) = outcome(&mut stream).await;
    assert_eq!((out.as_str(), err.as_str()), ("ran make", "with 1 variables"));
    assert_eq!(exit, Some(Exit::Status(3)));
    let v1::Open::Exec(told) = guest.openings().remove(0) else { panic!("no command") };
    assert_eq!(told.env, [("A".to_owned(), "b".to_owned())]);
    assert_eq!(told.pty.unwrap().modes, [(1, 3)]);
}

#[tokio::test]
async fn it_has_shells_that_are_typed_into_and_signalled() {
    let guest = v1::Guest::start();
    let mut stream = opened(&guest, Open::Exec(exec(Command::Shell))).await;
    let mut input = [&header(Kind::Data, 3)[..], b"ls\n"].concat();
    let resize = Event::Resize { columns: 100, rows: 30, width: 0, height: 0 };
    input.extend(encode(stream.version, &resize).unwrap());
    input.extend(encode(stream.version, &Event::Signal("INT".into())).unwrap());
    input.extend(header(Kind::Eof, 0));
    stream.writer.write_all(&input).await.unwrap();
    let (out, _, exit) = outcome(&mut stream).await;
    assert_eq!(out, "ls\nResize { columns: 100, rows: 30, width: 0, height: 0 }Signal(\"INT\")");
    assert_eq!(exit, Some(Exit::Status(0)));
}

#[tokio::test]
async fn it_serves_files() {
    let guest = v1::Guest::start();
    let sftp = Exec { command: Command::Sftp, env: Vec::new(), pty: None };
    let mut stream = opened(&guest, Open::Exec(sftp)).await;
    let start = [&header(Kind::Data, 9)[..], &[0, 0, 0, 5, 1, 0, 0, 0, 3]].concat();
    stream.writer.write_all(&start).await.unwrap();
    let Ok(Output::Data(version)) = stream.frames.output().await else { panic!("no version") };
    assert_eq!(version[..], [0, 0, 0, 5, 2, 0, 0, 0, 3]);
}

#[tokio::test]
async fn it_forwards_both_ways() {
    let guest = v1::Guest::start();
    let target = Target::Tcp { host: "db".into(), port: 5432 };
    for what in [Open::Connect(target), Open::Connect(Target::Unix { path: "/s".into() })] {
        let mut stream = opened(&guest, what).await;
        assert_eq!(stream.opened, Opened::Connected);
        stream.writer.write_all(b"there and back").await.unwrap();
        stream.writer.shutdown().await.unwrap();
        let mut back = Vec::new();
        while let Ok(bytes) = stream.frames.raw().await {
            back.extend(bytes);
        }
        assert_eq!(back, b"there and back");
    }
    for listen in [Listen::Tcp { host: String::new(), port: 0 }, Listen::Agent] {
        let mut listening = opened(&guest, Open::Listen(listen)).await;
        assert!(matches!(&listening.opened, Opened::Listening { port: 4242, .. }));
        let incoming = listening.frames.incoming().await.unwrap();
        assert_eq!((incoming.host.as_str(), incoming.port), ("127.0.0.1", 40_000));
        let claimed = opened(&guest, Open::Accept { ticket: incoming.ticket }).await;
        assert_eq!(claimed.opened, Opened::Connected);
    }
    let stream = TcpStream::connect(guest.address).await.unwrap();
    let refused = open(stream, Open::Accept { ticket: 1 }, LIMIT).await.unwrap_err();
    assert!(matches!(refused, GuestError::Refused(refused) if refused.kind == RefusedKind::Unreachable));
}

#[tokio::test]
async fn it_is_controlled_with_what_it_understands() {
    let guest = v1::Guest::start();
    let equip = Equip {
        authority: "pem".into(),
        roots: String::new(),
        environment: Vec::new(),
        known_hosts: "h k\n".into(),
    };
    let mut begin = Begin::new(None, Open::Control).unwrap();
    begin.push(&Control::Equip(equip.clone())).unwrap();
    let mut stream = begin.send(TcpStream::connect(guest.address).await.unwrap(), LIMIT).await.unwrap();
    assert_eq!(stream.receive::<Answer>(LIMIT).await.unwrap(), Answer::Done);
    stream.send(&Control::Vitals).await.unwrap();
    let Answer::Vitals(vitals) = stream.receive(LIMIT).await.unwrap() else { panic!("no vitals") };
    assert_eq!((vitals.commands, vitals.moved), (v1::vitals().commands, v1::vitals().moved));
    // The version is settled now, and is 1.
    stream.send(&Control::Equip(equip)).await.unwrap();
    assert_eq!(stream.receive::<Answer>(LIMIT).await.unwrap(), Answer::Done);
    let told = v1::Control::Equip(v1::Equip {
        authority: "pem".into(),
        roots: String::new(),
        environment: vec![(v1::KNOWN_HOSTS.into(), "h k\n".into())],
    });
    assert_eq!(guest.requests(), [told.clone(), v1::Control::Vitals, told]);
    assert_eq!(guest.openings(), [v1::Open::Control], "on one connection");
}

#[tokio::test]
async fn it_refuses_what_is_more_than_it_speaks() {
    let guest = v1::Guest::start();
    let begin = Begin::new(Some(Version::TWO), Open::Control).unwrap();
    let error = begin.send(TcpStream::connect(guest.address).await.unwrap(), LIMIT).await.unwrap_err();
    assert!(error.is_of_version() && !error.is_broken(), "{error}");
    assert_eq!((guest.openings().len(), guest.refused()), (0, 1));
}
