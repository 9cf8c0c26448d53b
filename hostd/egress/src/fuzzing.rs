//! What the targets in `fuzz/` call: parsers of what guests send, and what must be true of them.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a finding is a panic")]

use crate::bridge::{
    dns,
    sni::{self, Hello},
};
use hickory_proto::op::ResponseCode;
use std::{net::Ipv4Addr, time::Duration};

/// What was said of a beginning stays true of the whole.
pub fn sni(bytes: &[u8]) {
    let whole = sni::parse(bytes);
    for cut in 0..bytes.len().min(256) {
        let early = sni::parse(&bytes[..cut]);
        assert!(early == Hello::Incomplete || early == whole, "{early:?} then {whole:?}");
    }
}

/// What is taken for a question can be answered.
pub fn dns(bytes: &[u8]) {
    let Some(question) = dns::parse(bytes) else { return };
    let answer = question.answer(ResponseCode::NoError, &[Ipv4Addr::LOCALHOST], Duration::from_secs(1));
    assert_eq!(answer.unwrap()[..2], bytes[..2]);
}
