//! Today's host and guests that speak more than it does, or nothing that makes sense.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

use berth_guest_client::{Begin, GuestError, Output, Stream, open};
use berth_guest_protocol::{
    Answer, Control, Equip, Exit, FrameError, HEADER, Hello, Kind, Open, Opened, Opening, Reply, Speaks,
    Version, Vitals, decode, encode, header, parse_header,
};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

const LIMIT: Duration = Duration::from_secs(60);

/// A stream whose guest answers with these bytes, whatever it is told.
async fn guest(answer: Vec<u8>) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for piece in answer.chunks(3) {
            stream.write_all(piece).await.unwrap();
        }
        // Read to the end, so that closing does not reset what was sent.
        let _ = stream.shutdown().await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    });
    TcpStream::connect(address).await.unwrap()
}

async fn answered(answer: Vec<u8>) -> Result<Stream, GuestError> {
    open(guest(answer).await, Open::Control, LIMIT).await
}

/// A message with fields behind it that no version has yet.
fn with_more(mut frame: Vec<u8>) -> Vec<u8> {
    frame.extend([1, 0xfe, 0xff]);
    let (kind, length) = (parse_header(*frame.first_chunk().unwrap()).unwrap().kind, frame.len() - HEADER);
    frame[..HEADER].copy_from_slice(&header(kind, length));
    frame
}

/// Of version 9, which says more in everything.
fn newer(opened: Opened) -> Vec<u8> {
    let hello = Hello { version: Version::new(9).unwrap() };
    let reply = encode(Version::TWO, &Reply::Ok(opened)).unwrap();
    [with_more(encode(Version::TWO, &hello).unwrap()), with_more(reply)].concat()
}

#[tokio::test]
async fn what_a_newer_guest_says_besides_is_passed_over() {
    let mut answer = newer(Opened::Exec { pid: 7 });
    answer.extend([&header(Kind::Data, 2)[..], b"hi"].concat());
    answer.extend(header(Kind::Eof, 0));
    answer.extend(with_more(encode(Version::TWO, &Exit::Status(4)).unwrap()));
    let mut stream = answered(answer).await.unwrap();
    assert_eq!((stream.version, &stream.opened), (Version::OURS, &Opened::Exec { pid: 7 }));
    assert!(matches!(stream.frames.output().await, Ok(Output::Data(data)) if data[..] == b"hi"[..]));
    assert!(matches!(stream.frames.output().await, Ok(Output::Eof)));
    assert!(matches!(stream.frames.output().await, Ok(Output::Exit(Exit::Status(4)))));

    let mut answer = newer(Opened::Control);
    let vitals = Answer::Vitals(Vitals { commands: 2, ..Vitals::default() });
    answer.extend(with_more(encode(Version::TWO, &vitals).unwrap()));
    let mut stream = answered(answer).await.unwrap();
    assert_eq!(stream.receive::<Answer>(LIMIT).await.unwrap(), vitals);
}

/// What a guest is told by a host that knows its version, and by one that does not.
#[tokio::test]
async fn a_guest_that_is_known_is_told_all_at_once() {
    let equip = Control::Equip(Equip {
        authority: "pem".into(),
        roots: String::new(),
        environment: Vec::new(),
        known_hosts: "h k\n".into(),
    });
    for (known, version) in [(None, Version::ONE), (Version::new(9), Version::OURS)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let vitals = encode(Version::ONE, &Control::Vitals).unwrap();
        let heard: JoinHandle<Vec<u8>> = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut heard = Vec::new();
            // Not a word before all of it is there.
            while !heard.ends_with(&vitals) {
                assert_ne!(stream.read_buf(&mut heard).await.unwrap(), 0, "{heard:?}");
            }
            stream.write_all(&newer(Opened::Control)).await.unwrap();
            heard
        });
        let mut begin = Begin::new(known, Open::Control).unwrap();
        begin.push(&equip).unwrap();
        begin.push(&Control::Vitals).unwrap();
        let sent = begin.send(TcpStream::connect(address).await.unwrap(), LIMIT);
        let (stream, heard) = tokio::join!(sent, heard);
        assert_eq!(stream.unwrap().version, Version::OURS);
        let opening = Opening { speaks: Speaks::to(known), open: Open::Control }.encode().unwrap();
        let told = encode(version, &equip).unwrap();
        assert!(heard.unwrap().starts_with(&[opening, told].concat()), "{known:?}");
    }
}

#[tokio::test]
async fn output_arrives_in_order_however_it_is_cut() {
    let mut answer = newer(Opened::Exec { pid: 1 });
    answer.extend([&header(Kind::Data, 5)[..], b"hello"].concat());
    answer.extend([&header(Kind::Errors, 3)[..], b"bad"].concat());
    answer.extend(header(Kind::Eof, 0));
    answer.extend(encode(Version::TWO, &Exit::Status(7)).unwrap());
    let mut stream = answered(answer).await.unwrap();
    let (mut data, mut errors) = (Vec::new(), Vec::new());
    let exit = loop {
        match stream.frames.output().await.unwrap() {
            Output::Data(part) => data.extend(part),
            Output::Errors(part) => errors.extend(part),
            Output::Eof => {}
            Output::Exit(exit) => break exit,
        }
    };
    assert_eq!((data.as_slice(), errors.as_slice()), (&b"hello"[..], &b"bad"[..]));
    assert_eq!(exit, Exit::Status(7));
    assert!(matches!(stream.frames.output().await, Err(GuestError::Ended)));
}

#[tokio::test]
async fn garbage_is_an_error() {
    let hello = encode(Version::TWO, &Hello { version: Version::TWO }).unwrap();
    let reply = encode(Version::ONE, &Reply::Ok(Opened::Control)).unwrap();
    for garbage in [
        vec![255; 64],
        vec![0; 64],
        encode(Version::ONE, &Exit::Status(0)).unwrap(),
        header(Kind::Reply, 60_000).to_vec(),
        Vec::new(),
        // Without a reply, twice, of no version, and longer than it may be.
        hello.clone(),
        [hello.clone(), hello.clone(), reply.clone()].concat(),
        [vec![2, 0, 0, 0, 11, 0], reply.clone()].concat(),
        [vec![2, 1, 0, 0, 11], vec![2; 257], reply.clone()].concat(),
        // A guest that has said nothing of a version speaks 1, to the letter.
        with_more(reply.clone()),
    ] {
        assert!(answered(garbage.clone()).await.is_err(), "{garbage:?}");
    }
    // One that was heard to speak 2 and agrees without a hello.
    let begin = Begin::new(Some(Version::TWO), Open::Control).unwrap();
    let error = begin.send(guest(reply).await, LIMIT).await.unwrap_err();
    assert!(matches!(error, GuestError::Unexpected(Kind::Reply)), "{error}");
    // An end that does not decode.
    let mut answer = newer(Opened::Exec { pid: 1 });
    answer.extend([&header(Kind::Exit, 2)[..], &[9, 9]].concat());
    let mut stream = answered(answer).await.unwrap();
    assert!(matches!(stream.frames.output().await, Err(GuestError::Frame(FrameError::Payload))));
}

/// Whatever bytes a guest sends, the stream ends or goes on.
#[tokio::test]
async fn noise_is_an_error_or_a_message() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    for _ in 0..300 {
        let mut answer = newer(Opened::Control);
        for _ in 0..1 + next() % 4 {
            let place = usize::from(next()) % answer.len();
            answer[place] = next();
        }
        answer.extend((0..next() % 16).map(|_| next()));
        if let Ok(mut stream) = answered(answer).await {
            assert!(stream.version <= Version::OURS);
            while stream.frames.output().await.is_ok() {}
        }
    }
}

#[tokio::test]
async fn silence_has_a_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let error = open(stream, Open::Control, Duration::from_millis(10)).await.unwrap_err();
    assert!(matches!(error, GuestError::Silent));
}

/// A newer guest takes a request of either version on a connection of version 2.
#[test]
fn what_was_said_before_the_version_was_settled_is_understood() {
    let equip = Control::Equip(Equip {
        authority: "pem".into(),
        roots: String::new(),
        environment: vec![("A".into(), "b".into())],
        known_hosts: "h k\n".into(),
    });
    for told in [Version::ONE, Version::TWO] {
        let frame = encode(told, &equip).unwrap();
        assert_eq!(decode::<Control>(Version::TWO, &frame[HEADER..]), Ok(equip.clone()));
    }
}
