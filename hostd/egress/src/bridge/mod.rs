//! The bridge process: listeners of machines on one side, the world on the other.
//!
//! ```text
//!   listen ──▶ flow::{tls, http, other} ──▶ splice            nothing to read
//!                        │          └─────▶ inject, ssh       a secret's host
//!                        └ judge: policy, and the names that dns resolved
//! ```

mod addressee;
mod authority;
mod dial;
pub mod dns;
mod flow;
mod harden;
mod host;
mod inject;
mod listen;
mod load;
mod machine;
mod names;
mod orders;
mod packets;
mod refuse;
mod replay;
mod report;
mod rules;
pub mod sni;
mod splice;
mod ssh;
mod syscalls;
mod upstream;

#[cfg(test)]
mod fuzz;

pub use rules::check;
pub use ssh::public_host_key;

use crate::channel::{ChannelError, halves};
use std::{io, os::fd::AsFd};
use tokio::net::UnixStream;

/// Serves as this user until hostd closes the control socket, which is standard input.
pub fn run(uid: u32, gid: u32) -> anyhow::Result<()> {
    // The last files that are read.
    upstream::load_native_roots();
    harden::harden(uid, gid)?;
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let control = std::os::unix::net::UnixStream::from(control);
        control.set_nonblocking(true)?;
        let (sender, receiver) = halves(UnixStream::from_std(control)?);
        let (reporter, reports) = report::channel();
        tokio::spawn(report::write(sender, reports));
        orders::obey(receiver, reporter).await
    });
    // Connections are cut, not waited for.
    runtime.shutdown_background();
    match served {
        Err(ChannelError::Closed) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
