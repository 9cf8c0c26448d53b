//! The bytes on the wire, pinned. A change here is a change of the protocol:
//! it needs a new `GENERATION`, and the old bytes stay as they are.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

use berth_guest_protocol::{
    Answer, Command, Control, Equip, Event, Exec, Exit, GENERATION, Incoming, Kind, Listen, Open, Opened,
    Opening, Pty, Refused, RefusedKind, Repair, Reply, Shutdown, Target, Vitals, decode, encode, header,
    parse_header,
};
use serde::{Serialize, de::DeserializeOwned};

fn pin<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(kind: Kind, message: T, golden: &str) {
    let frame = encode(kind, &message).unwrap();
    let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.replace(' ', ""), "{message:?}");
    let (head, payload) = frame.split_first_chunk().unwrap();
    let parsed = parse_header(*head).unwrap();
    assert_eq!((parsed.kind, parsed.length), (kind, payload.len()));
    assert_eq!(decode::<T>(payload).unwrap(), message);
    // Nothing shorter is a message, and nothing longer.
    for end in 0..payload.len() {
        assert!(decode::<T>(&payload[..end]).is_err(), "{message:?} cut to {end}");
    }
    assert!(decode::<T>(&[payload, &[0]].concat()).is_err());
}

fn open(open: Open) -> Opening {
    Opening { generation: GENERATION, open }
}

#[test]
fn generation() {
    assert_eq!(GENERATION, 1);
}

#[test]
fn openings() {
    pin(Kind::Open, open(Open::Control), "03000000 01 01 00");
    let exec = Exec { command: Command::Shell, env: Vec::new(), pty: None };
    pin(Kind::Open, open(Open::Exec(exec)), "06000000 01 01 01 00 00 00");
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
    pin(
        Kind::Open,
        open(Open::Exec(exec)),
        "20000000 01 01 01 01 02 6c73 01 0141 0162 01 05 787465726d 50 18 8005 e003 02 01 03 80 80ac02",
    );
    let exec = Exec { command: Command::Sftp, env: Vec::new(), pty: None };
    pin(Kind::Open, open(Open::Exec(exec)), "06000000 01 01 01 02 00 00");
    let tcp = Target::Tcp { host: "db".into(), port: 5432 };
    pin(Kind::Open, open(Open::Connect(tcp)), "09000000 01 01 02 00 02 6462 b82a");
    let unix = Target::Unix { path: "/s".into() };
    pin(Kind::Open, open(Open::Connect(unix)), "07000000 01 01 02 01 02 2f73");
    let tcp = Listen::Tcp { host: String::new(), port: 0 };
    pin(Kind::Open, open(Open::Listen(tcp)), "06000000 01 01 03 00 00 00");
    let unix = Listen::Unix { path: "/s".into() };
    pin(Kind::Open, open(Open::Listen(unix)), "07000000 01 01 03 01 02 2f73");
    pin(Kind::Open, open(Open::Listen(Listen::Agent)), "04000000 01 01 03 02");
    pin(Kind::Open, open(Open::Accept { ticket: 300 }), "05000000 01 01 04 ac02");
}

#[test]
fn replies() {
    pin(Kind::Reply, Reply::Ok(Opened::Control), "03000000 02 00 00");
    pin(Kind::Reply, Reply::Ok(Opened::Exec { pid: 42 }), "04000000 02 00 01 2a");
    pin(Kind::Reply, Reply::Ok(Opened::Connected), "03000000 02 00 02");
    let listening = Opened::Listening { port: 8080, path: "/s".into() };
    pin(Kind::Reply, Reply::Ok(listening), "08000000 02 00 03 903f 02 2f73");
    for (kind, byte) in [
        (RefusedKind::Generation, "00"),
        (RefusedKind::Malformed, "01"),
        (RefusedKind::Unreachable, "02"),
        (RefusedKind::Denied, "03"),
        (RefusedKind::Exhausted, "04"),
        (RefusedKind::Failed, "05"),
    ] {
        let refused = Refused { kind, message: "no".into() };
        pin(Kind::Reply, Reply::Err(refused), &format!("06000000 02 01 {byte} 02 6e6f"));
    }
}

#[test]
fn streams() {
    let resize = Event::Resize { columns: 80, rows: 24, width: 0, height: 0 };
    pin(Kind::Event, resize, "06000000 06 00 50 18 00 00");
    pin(Kind::Event, Event::Signal("INT".into()), "06000000 06 01 03 494e54");
    pin(Kind::Exit, Exit::Status(7), "03000000 07 00 07");
    let killed = Exit::Signal { name: "KILL".into(), core: true };
    pin(Kind::Exit, killed, "08000000 07 01 04 4b494c4c 01");
    let incoming = Incoming { ticket: 1, host: "::1".into(), port: 40_000 };
    pin(Kind::Incoming, incoming, "09000000 08 01 03 3a3a31 c0b802");
    assert_eq!(header(Kind::Data, 3), [4, 0, 0, 0, 3]);
    assert_eq!(header(Kind::Errors, 0x1234), [0x35, 0x12, 0, 0, 4]);
    assert_eq!(header(Kind::Eof, 0), [1, 0, 0, 0, 5]);
}

#[test]
fn control() {
    pin(Kind::Control, Control::Ping, "02000000 09 00");
    pin(Kind::Control, Control::Freeze, "02000000 09 01");
    pin(Kind::Control, Control::Thaw, "02000000 09 02");
    let repair =
        Repair { clock: 1_000, entropy: [0xab; 32], hostname: "dev".into(), renew_identity: true, disk: 300 };
    let golden = format!("2b000000 09 03 e807 {} 03 646576 01 ac02", "ab".repeat(32));
    pin(Kind::Control, Control::Repair(repair), &golden);
    pin(Kind::Control, Control::Vitals, "02000000 09 04");
    pin(Kind::Control, Control::Shutdown(Shutdown::PowerOff), "03000000 09 05 00");
    pin(Kind::Control, Control::Shutdown(Shutdown::Reboot), "03000000 09 05 01");
    let equip =
        Equip { authority: "pem".into(), roots: "x".into(), environment: vec![("A".into(), "b".into())] };
    pin(Kind::Control, Control::Equip(equip), "0d000000 09 06 03 70656d 01 78 01 0141 0162");
    pin(Kind::Control, Control::Rehearse, "02000000 09 07");
    pin(Kind::Answer, Answer::Done, "02000000 0a 00");
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
    pin(Kind::Answer, Answer::Vitals(vitals), "0d000000 0a 01 01 02 03 04 05 06 07 08 ac02 09");
    pin(Kind::Answer, Answer::Failed("no".into()), "05000000 0a 02 02 6e6f");
}

/// A generator that repeats, for inputs that a failure can be traced to.
fn noise(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    }
}

#[test]
fn noise_is_an_error_or_a_message_never_a_panic() {
    for seed in 1..20_000 {
        let mut next = noise(seed);
        let length = usize::from(next() % 48);
        let bytes: Vec<u8> = (0..length).map(|_| next()).collect();
        if let Some(head) = bytes.first_chunk()
            && let Ok(parsed) = parse_header(*head)
        {
            assert!(parsed.length <= parsed.kind.limit());
        }
        let _ = decode::<Opening>(&bytes);
        let _ = decode::<Reply>(&bytes);
        let _ = decode::<Event>(&bytes);
        let _ = decode::<Exit>(&bytes);
        let _ = decode::<Incoming>(&bytes);
        let _ = decode::<Control>(&bytes);
        let _ = decode::<Answer>(&bytes);
    }
}

#[test]
fn a_message_beyond_its_limit_is_not_sent() {
    let answer = Answer::Failed("x".repeat(70_000));
    assert!(encode(Kind::Answer, &answer).is_err());
}
