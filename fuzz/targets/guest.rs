//! Frames as a guest may send them to the gateway and to hostd.
#![no_main]

use berth_guest_protocol::{Answer, Event, Exit, HEADER, Incoming, Kind, Reply, decode, parse_header};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((head, payload)) = bytes.split_first_chunk::<HEADER>() else { return };
    let Ok(header) = parse_header(*head) else { return };
    assert!(header.length <= header.kind.limit());
    match header.kind {
        Kind::Reply => drop(decode::<Reply>(payload)),
        Kind::Event => drop(decode::<Event>(payload)),
        Kind::Exit => drop(decode::<Exit>(payload)),
        Kind::Incoming => drop(decode::<Incoming>(payload)),
        Kind::Answer => drop(decode::<Answer>(payload)),
        _ => {}
    }
});
