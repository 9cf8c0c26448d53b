//! Version 1 on the wire, pinned as of commit f8cd9a1: machines sleep that speak it.
//! Nothing here is ever changed. Every frame is checked twice: as today's code has it, and
//! as the frozen copy of that commit's code has it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

use berth_guest_protocol::{
    Answer, Command, Control, Equip, Event, Exec, Exit, Incoming, Kind, Listen, Message, Open, Opened,
    Opening, Pty, Refused, RefusedKind, Repair, Reply, Shutdown, Speaks, Target, Version, Vitals, decode,
    encode, frozen::v1, header, parse_header,
};
use serde::{Serialize, de::DeserializeOwned};

fn pin<M: Message + PartialEq + std::fmt::Debug>(message: M, golden: &str) {
    let frame = encode(Version::ONE, &message).unwrap();
    let payload = check(M::KIND, &frame, golden);
    assert_eq!(decode::<M>(Version::ONE, payload).unwrap(), message);
    // A later reader takes it too, for it may come before the version is settled.
    assert_eq!(decode::<M>(Version::OURS, payload).unwrap(), message);
    // Nothing shorter is a message, and nothing longer.
    for end in 0..payload.len() {
        assert!(decode::<M>(Version::ONE, &payload[..end]).is_err(), "{message:?} cut to {end}");
    }
    assert!(decode::<M>(Version::ONE, &[payload, &[0]].concat()).is_err());
}

fn pin_opening(open: Open, golden: &str) {
    let opening = Opening { speaks: Speaks::UpTo(Version::ONE), open };
    let frame = opening.encode().unwrap();
    let payload = check(Kind::Open, &frame, golden);
    assert_eq!(Opening::decode(payload).unwrap(), opening);
    for end in 0..payload.len() {
        assert!(Opening::decode(&payload[..end]).is_err(), "{opening:?} cut to {end}");
    }
    assert!(Opening::decode(&[payload, &[0]].concat()).is_err());
    // And as a host says it that does not know its guest: the frozen code reads the same.
    let unknown = Opening { speaks: Speaks::OneOrTwo, open: opening.open };
    let marked = unknown.encode().unwrap();
    assert_eq!(marked[v1::HEADER..], [&[0x81, 0x00], &payload[1..]].concat());
    assert_eq!(
        v1::decode::<v1::Opening>(&marked[v1::HEADER..]).unwrap(),
        v1::decode::<v1::Opening>(payload).unwrap()
    );
    assert_eq!(Opening::decode(&marked[v1::HEADER..]).unwrap(), unknown);
}

/// Returns the payload of a frame that is as it should be.
fn check<'f>(kind: Kind, frame: &'f [u8], golden: &str) -> &'f [u8] {
    let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.replace(' ', ""));
    let (head, payload) = frame.split_first_chunk().unwrap();
    let parsed = parse_header(*head).unwrap();
    assert_eq!((parsed.kind, parsed.length), (kind, payload.len()));
    assert_eq!(as_it_was(v1::parse_header(*head).unwrap().kind, payload), frame);
    payload
}

/// What the frozen code makes of a message: the same bytes again.
fn as_it_was(kind: v1::Kind, payload: &[u8]) -> Vec<u8> {
    fn again<T: Serialize + DeserializeOwned>(kind: v1::Kind, payload: &[u8]) -> Vec<u8> {
        v1::encode(kind, &v1::decode::<T>(payload).unwrap()).unwrap()
    }
    match kind {
        v1::Kind::Open => again::<v1::Opening>(kind, payload),
        v1::Kind::Reply => again::<v1::Reply>(kind, payload),
        v1::Kind::Event => again::<v1::Event>(kind, payload),
        v1::Kind::Exit => again::<v1::Exit>(kind, payload),
        v1::Kind::Incoming => again::<v1::Incoming>(kind, payload),
        v1::Kind::Control => again::<v1::Control>(kind, payload),
        v1::Kind::Answer => again::<v1::Answer>(kind, payload),
        v1::Kind::Data | v1::Kind::Errors | v1::Kind::Eof => panic!("{kind:?} is no message"),
    }
}

#[test]
fn openings() {
    pin_opening(Open::Control, "03000000 01 01 00");
    let exec = Exec { command: Command::Shell, env: Vec::new(), pty: None };
    pin_opening(Open::Exec(exec), "06000000 01 01 01 00 00 00");
    let exec = Exec {
        command: Command::Line(b"ls".into()),
        env: vec![("A".into(), "b".into())],
        pty: Some(Pty {
            term: "xterm".into(),
            columns: 80,
            rows: 24,
            width: 640,
            height: 480,
            modes: vec![(1, 3), (128, 38_400)],
        }),
    };
    pin_opening(
        Open::Exec(exec),
        "20000000 01 01 01 01 02 6c73 01 0141 0162 01 05 787465726d 50 18 8005 e003 02 01 03 80 80ac02",
    );
    let exec = Exec { command: Command::Sftp, env: Vec::new(), pty: None };
    pin_opening(Open::Exec(exec), "06000000 01 01 01 02 00 00");
    let tcp = Target::Tcp { host: "db".into(), port: 5432 };
    pin_opening(Open::Connect(tcp), "09000000 01 01 02 00 02 6462 b82a");
    let unix = Target::Unix { path: "/s".into() };
    pin_opening(Open::Connect(unix), "07000000 01 01 02 01 02 2f73");
    let tcp = Listen::Tcp { host: String::new(), port: 0 };
    pin_opening(Open::Listen(tcp), "06000000 01 01 03 00 00 00");
    let unix = Listen::Unix { path: "/s".into() };
    pin_opening(Open::Listen(unix), "07000000 01 01 03 01 02 2f73");
    pin_opening(Open::Listen(Listen::Agent), "04000000 01 01 03 02");
    pin_opening(Open::Accept { ticket: 300 }, "05000000 01 01 04 ac02");
}

#[test]
fn replies() {
    pin(Reply::Ok(Opened::Control), "03000000 02 00 00");
    pin(Reply::Ok(Opened::Exec { pid: 42 }), "04000000 02 00 01 2a");
    pin(Reply::Ok(Opened::Connected), "03000000 02 00 02");
    let listening = Opened::Listening { port: 8080, path: "/s".into() };
    pin(Reply::Ok(listening), "08000000 02 00 03 903f 02 2f73");
    for (kind, byte) in [
        (RefusedKind::Version, "00"),
        (RefusedKind::Malformed, "01"),
        (RefusedKind::Unreachable, "02"),
        (RefusedKind::Denied, "03"),
        (RefusedKind::Exhausted, "04"),
        (RefusedKind::Failed, "05"),
    ] {
        let refused = Refused { kind, message: "no".into() };
        pin(Reply::Err(refused), &format!("06000000 02 01 {byte} 02 6e6f"));
    }
}

#[test]
fn streams() {
    let resize = Event::Resize { columns: 80, rows: 24, width: 0, height: 0 };
    pin(resize, "06000000 06 00 50 18 00 00");
    pin(Event::Signal("INT".into()), "06000000 06 01 03 494e54");
    pin(Exit::Status(7), "03000000 07 00 07");
    let killed = Exit::Signal { name: "KILL".into(), core: true };
    pin(killed, "08000000 07 01 04 4b494c4c 01");
    let incoming = Incoming { ticket: 1, host: "::1".into(), port: 40_000 };
    pin(incoming, "09000000 08 01 03 3a3a31 c0b802");
    assert_eq!(header(Kind::Data, 3), [4, 0, 0, 0, 3]);
    assert_eq!(header(Kind::Errors, 0x1234), [0x35, 0x12, 0, 0, 4]);
    assert_eq!(header(Kind::Eof, 0), [1, 0, 0, 0, 5]);
}

#[test]
fn control() {
    pin(Control::Ping, "02000000 09 00");
    pin(Control::Freeze, "02000000 09 01");
    pin(Control::Thaw, "02000000 09 02");
    let repair =
        Repair { clock: 1_000, entropy: [0xab; 32], hostname: "dev".into(), renew_identity: true, disk: 300 };
    let golden = format!("2b000000 09 03 e807 {} 03 646576 01 ac02", "ab".repeat(32));
    pin(Control::Repair(repair), &golden);
    pin(Control::Vitals, "02000000 09 04");
    pin(Control::Shutdown(Shutdown::PowerOff), "03000000 09 05 00");
    pin(Control::Shutdown(Shutdown::Reboot), "03000000 09 05 01");
    let mut equip = Equip {
        authority: "pem".into(),
        roots: "x".into(),
        environment: vec![("A".into(), "b".into())],
        known_hosts: String::new(),
    };
    pin(Control::Equip(equip.clone()), "0d000000 09 06 03 70656d 01 78 01 0141 0162");
    // Known hosts go as a variable.
    equip.known_hosts = "h k\n".into();
    pin(
        Control::Equip(equip),
        "24000000 09 06 03 70656d 01 78 02 0141 0162 11 42455254485f4b4e4f574e5f484f535453 04 68206b0a",
    );
    pin(Control::Rehearse, "02000000 09 07");
    pin(Answer::Done, "02000000 0a 00");
    let vitals = Vitals {
        uptime_ms: 1,
        commands: 2,
        terminals: 3,
        busy_terminals: 4,
        cpu_ns: 5,
        memory_used: 6,
        memory_total: 7,
        disk_used: 8,
        disk_total: 300,
        moved: 9,
    };
    pin(Answer::Vitals(vitals), "0d000000 0a 01 01 02 03 04 05 06 07 08 ac02 09");
    pin(Answer::Failed("no".into()), "05000000 0a 02 02 6e6f");
}
