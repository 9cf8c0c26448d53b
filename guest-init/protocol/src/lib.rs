//! What the host and guest-init say to each other over the ctl link.
//!
//! One TCP connection is one stream. The host connects, sends one
//! [`Kind::Open`] frame and reads one [`Kind::Reply`] frame. What follows
//! depends on what was opened:
//!
//! | opened | afterwards |
//! |---|---|
//! | [`Open::Control`] | [`Kind::Control`] and [`Kind::Answer`], in turn |
//! | [`Open::Exec`] | [`Kind::Data`], [`Kind::Eof`], [`Kind::Event`] down; [`Kind::Data`], [`Kind::Errors`], [`Kind::Eof`], [`Kind::Exit`] up |
//! | [`Open::Connect`], [`Open::Accept`] | no more frames: raw bytes both ways, half-closed as TCP is |
//! | [`Open::Listen`] | one [`Kind::Incoming`] up per connection, to be claimed by [`Open::Accept`] on a stream of its own |
//!
//! A frame is `length: u32 little-endian`, `kind: u8`, then `length - 1` bytes
//! of payload: raw bytes for data, postcard for everything else. A connection
//! uses the lower [`Version`] of both ends; `VERSIONING.md` says how they settle on
//! it and how something is added. The bytes of every version are pinned by the
//! golden frames in `tests/`.
//!
//! Everything that arrives from a guest is hostile: lengths are checked before
//! anything is allocated, and what does not decode is an error, never a panic.

mod codec;
mod frame;
#[cfg(feature = "frozen")]
pub mod frozen;
mod message;
mod opening;
mod version;

pub use codec::{Message, decode, encode};
pub use frame::{FrameError, HEADER, Header, Kind, MAX_DATA, MAX_FRAME, header, parse_header};
pub use message::{
    Answer, Command, Control, Equip, Event, Exec, Exit, Hello, Incoming, Listen, Open, Opened, Pty, Refused,
    RefusedKind, Repair, Reply, Shutdown, Target, Vitals,
};
pub use opening::{Opening, Speaks};
pub use version::{Feature, Version};

/// Where guest-init listens, in its private namespace.
pub const PORT: u16 = 7;

/// The ctl link's two ends, the same in every machine.
pub const HOST_ADDRESS: [u8; 4] = [169, 254, 77, 1];
pub const GUEST_ADDRESS: [u8; 4] = [169, 254, 77, 2];
pub const PREFIX: u8 = 30;
/// Which of the two NICs is which, told by MAC address.
pub const CTL_GUEST_MAC: [u8; 6] = [0x02, 0xbe, 0x27, 0x00, 0x00, 0x02];
pub const CTL_HOST_MAC: [u8; 6] = [0x02, 0xbe, 0x27, 0x00, 0x00, 0x01];

/// What the host's authority calls itself, and the hash of that name by which
/// OpenSSL finds a certificate in a directory. The same on every host, so that
/// guest-init need not compute it.
pub const AUTHORITY_NAME: &str = "berth egress authority";
pub const AUTHORITY_HASH: &str = "7e762151";

/// The user's link, the same in every machine too.
pub const ETH_GUEST_MAC: [u8; 6] = [0x02, 0xbe, 0x27, 0x00, 0x01, 0x02];
pub const ETH_HOST_MAC: [u8; 6] = [0x02, 0xbe, 0x27, 0x00, 0x01, 0x01];
pub const ETH_HOST_ADDRESS: [u8; 4] = [10, 77, 0, 1];
pub const ETH_GUEST_ADDRESS: [u8; 4] = [10, 77, 0, 2];
pub const ETH_NETWORK: [u8; 4] = [10, 77, 0, 0];
pub const ETH_PREFIX: u8 = 24;
