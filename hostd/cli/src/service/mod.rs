//! The service without an init system: `run`, `up` and `down`.
//!
//! ```text
//! berth run ──┬── berth-hostd       started first, stopped last
//!             └── berth-gateway     once hostd answers
//! ```
//!
//! The supervisor starts what dies again. If it is itself killed, the daemons and
//! the machines go on without it, and the next one takes their place.

mod account;
mod backoff;
mod daemon;
pub mod down;
mod place;
mod prepare;
mod probe;
mod process;
mod reach;
mod ready;
pub mod run;
mod stop;
pub mod up;
