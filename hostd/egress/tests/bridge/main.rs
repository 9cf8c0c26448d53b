//! The bridge from outside: the real process, real sockets, real clients.
//!
//! Three namespaces stand in for the world: the servers', the host's with the
//! bridge, and the guest's, whose traffic is redirected as in a machine's.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop where they fail")]

mod allowlist;
mod attacks;
mod echoes;
mod hosts;
mod injecting;
mod life;
mod limits;
mod memory;
mod names;
mod nowhere;
mod passing;
mod protocols;
mod scrubbing;
mod support;
