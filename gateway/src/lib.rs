//! The gateway: SSH on one side, requests to hostd and byte streams into
//! machines on the other.
//!
//! ```text
//!   ssh ──▶ ssh::server ──▶ ssh::handler ──▶ ssh::session ──▶ target
//!            (limits)        (callbacks)      (a channel)       │
//!                                                ┌──────────────┴─────┐
//!                                             command/           attach/
//!                                             a verb            a machine
//! ```
//!
//! It keeps no state of its own but its host keys, and runs unprivileged.

mod arguments;
pub mod attach;
pub mod command;
pub mod privilege;
pub mod ssh;
pub mod target;
pub mod ui;

pub use arguments::Arguments;
