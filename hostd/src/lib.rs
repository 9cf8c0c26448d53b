//! hostd owns machines: their files, processes, networks and records.
//!
//! ```text
//!   gateway, berth ──▶ server ──▶ verb ──▶ fleet ──▶ machine (one task each)
//!                                            │            │
//!                                   registry, ledger   storage, net, guest, driver
//! ```

mod admission;
mod archive;
mod egress;
mod error;
mod fault;
mod fleet;
mod format;
mod guest;
mod host;
mod idle;
mod keyfile;
mod ledger;
mod lost;
mod machine;
mod mirror;
mod net;
mod private;
mod quota;
mod recover;
mod registry;
mod run;
mod secret;
mod server;
mod shortage;
mod storage;
mod store;
mod template;
mod verb;

pub use error::Error;
pub use fault::POINTS as FAULT_POINTS;
pub use run::run;
pub use secret::MasterKey;

#[cfg(test)]
mod tests;
