//! hostd's API on its unix socket: requests, replies and the client for them.
//!
//! A connection carries one call at a time: a [`Call`] down, any number of
//! [`Message::Progress`] up, then one [`Message::Done`]. A reply that opens a
//! stream into a machine brings the stream itself, as a file descriptor.
//! Who may call what is decided by the peer's user id: the operator (root) may
//! do everything, the gateway's user what users ask for.

mod client;
mod codec;
mod egress;
mod message;
mod view;

pub use client::{CallError, Client};
pub use codec::{Connection, ConnectionError, MAX_MESSAGE};
pub use egress::{EgressChange, EgressTarget, EgressView, Ineffective, SecretInput, SecretView};
pub use message::{Call, Caller, Message, OtherVersion, Reply, Request, Session};
pub use view::{
    Identity, KeyNotice, LostView, MachineView, NetworkView, PointView, Resolved, Status, StrandedView,
    Usage, UserView, WhyView,
};

/// The login name of `berth up` and `berth run`: a connection of the host's own that asks
/// the gateway to ask hostd [`Request::Ready`]. No machine can have that name.
pub const READY_LOGIN: &str = "_ready";

/// Of the API; both ends must agree. hostd reads a caller's before anything else that it says,
/// and refuses another by its number.
pub const FORMAT_VERSION: u64 = 2;
