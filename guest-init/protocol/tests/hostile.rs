//! What a peer may send that is no peer: an error or a message, never a panic, and never
//! more memory than the kind of a frame allows.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use berth_guest_protocol::{
    Answer, Control, Equip, Event, Exit, FrameError, HEADER, Hello, Incoming, Kind, MAX_FRAME, Message, Open,
    Opened, Opening, Reply, Speaks, Version, Vitals, decode, encode, parse_header,
};

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

/// What decodes can be said again, in every version, and means the same.
fn read<M: Message + PartialEq + std::fmt::Debug>(payload: &[u8]) {
    let strict = decode::<M>(Version::ONE, payload);
    let lenient = decode::<M>(Version::TWO, payload);
    if let Ok(message) = &strict {
        assert_eq!(lenient.as_ref(), Ok(message), "version 2 reads all that version 1 has");
    }
    if let Ok(message) = lenient {
        let frame = encode(Version::TWO, &message).unwrap();
        assert_eq!(decode::<M>(Version::TWO, &frame[HEADER..]), Ok(message));
    }
}

fn read_all(payload: &[u8]) {
    if let Some(head) = payload.first_chunk()
        && let Ok(parsed) = parse_header(*head)
    {
        assert!(parsed.length <= parsed.kind.limit() && parsed.kind.limit() <= MAX_FRAME);
    }
    if let Ok(opening) = Opening::decode(payload) {
        assert_eq!(Opening::decode(&opening.encode().unwrap()[HEADER..]), Ok(opening));
    }
    read::<Hello>(payload);
    read::<Reply>(payload);
    read::<Event>(payload);
    read::<Exit>(payload);
    read::<Incoming>(payload);
    read::<Control>(payload);
    read::<Answer>(payload);
}

#[test]
fn noise_is_an_error_or_a_message() {
    for seed in 1..20_000 {
        let mut next = noise(seed);
        let length = usize::from(next() % 48);
        let bytes: Vec<u8> = (0..length).map(|_| next()).collect();
        read_all(&bytes);
    }
}

/// Closer to what is meant than noise is: real messages, with bytes changed, cut off and
/// put behind.
#[test]
fn messages_that_were_altered_are_errors_or_messages() {
    let equip = Equip {
        authority: "pem".into(),
        roots: String::new(),
        environment: vec![("A".into(), "b".into()), ("BERTH_KNOWN_HOSTS".into(), "c".into())],
        known_hosts: "h k".into(),
    };
    let originals = [
        Opening { speaks: Speaks::OneOrTwo, open: Open::Control }.encode().unwrap(),
        Opening { speaks: Speaks::UpTo(Version::OURS), open: Open::Accept { ticket: 300 } }.encode().unwrap(),
        encode(Version::TWO, &Hello { version: Version::OURS }).unwrap(),
        encode(Version::TWO, &Reply::Ok(Opened::Listening { port: 80, path: "/s".into() })).unwrap(),
        encode(Version::ONE, &Control::Equip(equip.clone())).unwrap(),
        encode(Version::TWO, &Control::Equip(equip)).unwrap(),
        encode(Version::TWO, &Answer::Vitals(Vitals { disk_total: 1 << 40, ..Vitals::default() })).unwrap(),
    ];
    for (seed, original) in (1..3_000).flat_map(|seed| originals.iter().map(move |one| (seed, one))) {
        let mut next = noise(seed);
        let mut payload = original[HEADER..].to_vec();
        for _ in 0..next() % 3 {
            let place = usize::from(next()) % payload.len();
            payload[place] = next();
        }
        if next().is_multiple_of(3) {
            payload.truncate(usize::from(next()) % (payload.len() + 1));
        }
        payload.extend((0..next() % 4).map(|_| next()));
        read_all(&payload);
    }
}

#[test]
fn a_version_is_a_number_from_one_to_the_largest() {
    let version = |bytes: &[u8]| Opening::decode(&[bytes, &[0]].concat()).map(|opening| opening.speaks);
    assert_eq!(version(&[0x01]), Ok(Speaks::UpTo(Version::ONE)));
    assert_eq!(version(&[0x81, 0x00]), Ok(Speaks::OneOrTwo));
    assert_eq!(version(&[0x81, 0x80, 0x00]), Ok(Speaks::OneOrTwo));
    assert_eq!(version(&[0xff, 0xff, 0x03]), Ok(Speaks::UpTo(Version::new(u16::MAX).unwrap())));
    for bad in [&[0x00][..], &[0x80, 0x00], &[0xff, 0xff, 0x04], &[0xff, 0xff, 0xff]] {
        assert_eq!(version(bad), Err(FrameError::Payload), "{bad:?}");
    }
    assert_eq!(decode::<Hello>(Version::TWO, &[0]), Err(FrameError::Payload));
}

/// A length inside a message that says more than is there allocates nothing for it.
#[test]
fn lengths_inside_a_message_are_not_believed() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    // Equip's authority, its variables, and what came later.
    for before in [&[6][..], &[6, 0, 0], &[6, 0, 0, 0, 1]] {
        assert!(decode::<Control>(Version::TWO, &[before, &huge].concat()).is_err());
    }
}

#[test]
fn a_message_beyond_its_limit_is_not_sent() {
    let answer = Answer::Failed("x".repeat(70_000));
    assert!(encode(Version::TWO, &answer).is_err());
    assert_eq!(Kind::Hello.limit(), 256);
}
