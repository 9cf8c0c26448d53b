//! Version 2 on the wire, pinned: what it has that version 1 has not. The rest is the same
//! bytes. Nothing here is changed once a machine may sleep that speaks it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use berth_guest_protocol::{
    Answer, Control, Equip, Event, Exec, Exit, HEADER, Hello, Incoming, Message, Open, Opened, Opening,
    Repair, Reply, Shutdown, Speaks, Target, Version, Vitals, decode, encode,
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pin<M: Message + PartialEq + std::fmt::Debug>(message: &M, golden: &str) {
    let frame = encode(Version::TWO, message).unwrap();
    assert_eq!(hex(&frame), golden.replace(' ', ""), "{message:?}");
    assert_eq!(decode::<M>(Version::TWO, &frame[HEADER..]).as_ref(), Ok(message));
    // What comes later behind it is passed over.
    assert_eq!(decode::<M>(Version::TWO, &[&frame[HEADER..], &[1, 7]].concat()).as_ref(), Ok(message));
}

fn pin_opening(speaks: Speaks, open: Open, golden: &str) {
    let opening = Opening { speaks, open };
    let frame = opening.encode().unwrap();
    assert_eq!(hex(&frame), golden.replace(' ', ""), "{opening:?}");
    assert_eq!(Opening::decode(&frame[HEADER..]), Ok(opening));
}

#[test]
fn openings() {
    let numbered = Speaks::UpTo(Version::TWO);
    pin_opening(Speaks::OneOrTwo, Open::Control, "04000000 01 8100 00");
    pin_opening(numbered, Open::Control, "03000000 01 02 00");
    pin_opening(Speaks::OneOrTwo, Open::Accept { ticket: 300 }, "06000000 01 8100 04 ac02");
    let exec = Exec { command: berth_guest_protocol::Command::Line(b"ls".into()), env: vec![], pty: None };
    pin_opening(Speaks::OneOrTwo, Open::Exec(exec.clone()), "0a000000 01 8100 01 01 02 6c73 00 00");
    pin_opening(numbered, Open::Exec(exec), "09000000 01 02 01 01 02 6c73 00 00");
    let target = Target::Tcp { host: "db".into(), port: 5432 };
    pin_opening(Speaks::OneOrTwo, Open::Connect(target), "0a000000 01 8100 02 00 02 6462 b82a");
    // Of a version to come, with what it has besides.
    let later = [3, 4, 0xac, 2, 1, 9];
    let opening =
        Opening { speaks: Speaks::UpTo(Version::new(3).unwrap()), open: Open::Accept { ticket: 300 } };
    assert_eq!(Opening::decode(&later), Ok(opening));
}

#[test]
fn hello() {
    pin(&Hello { version: Version::TWO }, "02000000 0b 02");
}

#[test]
fn known_hosts_are_a_field() {
    let mut equip = Equip {
        authority: "pem".into(),
        roots: "x".into(),
        environment: vec![("A".into(), "b".into())],
        known_hosts: "h k\n".into(),
    };
    let golden = "13000000 09 06 03 70656d 01 78 01 0141 0162 01 04 68206b0a";
    pin(&Control::Equip(equip.clone()), golden);
    equip.known_hosts.clear();
    pin(&Control::Equip(equip), "0f000000 09 06 03 70656d 01 78 01 0141 0162 01 00");
}

#[test]
fn all_else_is_as_in_version_1() {
    fn same<M: Message>(message: &M) {
        assert_eq!(encode(Version::TWO, message), encode(Version::ONE, message));
    }
    for opened in [
        Opened::Control,
        Opened::Exec { pid: 42 },
        Opened::Connected,
        Opened::Listening { port: 8080, path: "/s".into() },
    ] {
        same(&Reply::Ok(opened));
    }
    same(&Event::Signal("INT".into()));
    same(&Event::Resize { columns: 80, rows: 24, width: 0, height: 0 });
    same(&Exit::Signal { name: "KILL".into(), core: true });
    same(&Incoming { ticket: 1, host: "::1".into(), port: 40_000 });
    let repair =
        Repair { clock: 1, entropy: [7; 32], hostname: "dev".into(), renew_identity: true, disk: 300 };
    for control in [
        Control::Ping,
        Control::Freeze,
        Control::Thaw,
        Control::Repair(repair),
        Control::Vitals,
        Control::Shutdown(Shutdown::Reboot),
        Control::Rehearse,
    ] {
        same(&control);
    }
    for answer in [Answer::Done, Answer::Vitals(Vitals::default()), Answer::Failed("no".into())] {
        same(&answer);
    }
}
