//! What the end-to-end cases and the benchmark are made of: a service of their
//! own, the real `ssh` in front of it, and nothing left behind afterwards.
//!
//! ```text
//!   Scratch   a directory under /var/tmp that owns everything below
//!     ├─ Service   berth-hostd and berth-gateway with a config of their own
//!     ├─ Upstream  servers in a namespace of their own, for machines to reach
//!     ├─ Sshd      OpenSSH's server: what a case or a figure is compared with
//!     └─ Account   a key at one of the two ──▶ Remote   where ssh logs in
//! ```
//!
//! A case that is true of any SSH server also runs against [`Sshd`]: so it is
//! known to describe SSH and not merely what we built.

mod account;
mod cloud;
mod paths;
mod process;
mod remote;
mod scratch;
mod service;
mod settings;
mod sshd;
mod sweep;
mod terminal;
mod transcript;
mod upstream;
mod wait;

pub use account::{Account, Endpoint};
pub use cloud::{cloud_hypervisor, missing_for_cloud_hypervisor};
pub use paths::{binaries, binary, images, repository};
pub use process::{Output, Run, Running};
pub use remote::Remote;
pub use scratch::{Scratch, clean_up_on_signals};
pub use service::{LOG, Service, UNIT};
pub use settings::Settings;
pub use sshd::Sshd;
pub use sweep::left_behind;
pub use terminal::Terminal;
pub use transcript::{matches, replay};
pub use upstream::{REBOUND, Upstream};
pub use wait::{eventually, until};
