//! The egress bridge: the host's side of a machine's network.
//!
//! ```text
//!   guest ──▶ tap ──▶ redirect ──▶ listeners ══▶ berth-bridge ──▶ the world
//!             (the machine's namespace)  │          unprivileged, the host's namespace
//!                                        │              ▲
//!                                      hostd ── control ┘  policy, secrets, descriptors
//! ```
//!
//! hostd makes the listeners inside each machine's namespace and hands them to
//! one `berth-bridge` process, which parses everything that guests and servers
//! say. [`control`] is what the two tell each other, [`Bridge`] is hostd's end.

mod bridge;
mod channel;
pub mod control;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handle;
mod spawn;

pub use bridge::{check as check_secret, public_host_key, run as run_bridge};
pub use handle::{Bridge, BridgeError};
pub use spawn::Launch;
