//! How much a connection may have under way.
//!
//! The other end may send as much as a window has without anybody reading it, so
//! windows are memory. A machine's first connections get windows that a fast line
//! fills; those of one that has many are small.

use crate::bridge::{load::Seat, machine::Machine};

/// Connections of one machine with large windows.
const WIDE: usize = 16;
/// What is kept of an answer that the other end does not take.
pub const SEND: usize = 64 * 1024;
/// What of HTTP/1 is read ahead; a head has room in it.
pub const READ: usize = 128 * 1024;

#[derive(Debug)]
pub struct Windows {
    pub stream: u32,
    pub connection: u32,
    /// Streams at a time.
    pub streams: u32,
    _wide: Option<Seat>,
}

impl Windows {
    pub fn of(machine: &Machine) -> Self {
        let streams = machine.host.shared().limits.streams;
        match machine.wide.admit(WIDE) {
            Some(seat) => Self { stream: 256 * 1024, connection: 1024 * 1024, streams, _wide: Some(seat) },
            // No connection of HTTP/2 has less.
            None => Self { stream: 65_535, connection: 65_535, streams: streams.min(16), _wide: None },
        }
    }
}
