//! Version 1 as of commit f8cd9a1: machines sleep with such a guest-init in memory.
//! `frame` and `message` are copies; `guest` answers as that guest-init does.

mod frame;
mod guest;
mod message;

pub use frame::{
    FrameError, HEADER, Header, Kind, MAX_DATA, MAX_FRAME, decode, encode, header, parse_header,
};
pub use guest::{Guest, vitals};
pub use message::{
    Answer, Command, Control, Equip, Event, Exec, Exit, Incoming, Listen, Open, Opened, Opening, Pty,
    Refused, RefusedKind, Repair, Reply, Shutdown, Target, Vitals,
};

/// A guest refuses every other.
pub const GENERATION: u16 = 1;

/// Among the variables of [`Equip`]: the lines of known_hosts.
pub const KNOWN_HOSTS: &str = "BERTH_KNOWN_HOSTS";
