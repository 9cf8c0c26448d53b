//! `make bench`: how fast the service is, against OpenSSH's own server on the
//! same host in the same run, and where the difference comes from.
//!
//! Absolute figures say more about the host than about us, so what is compared
//! is ratios. Three servers take turns:
//!
//! ```text
//!   sshd     ssh ─▶ sshd ─▶ a process on the host
//!   gateway  ssh ─▶ gateway ─▶ guest-init, a process on the host
//!   machine  ssh ─▶ gateway ─▶ guest-init in a machine
//! ```
//!
//! The second against the first is what the gateway itself costs; the third
//! against the second is what the guest does.

mod bare;
mod measure;
mod memory;
mod report;
mod rest;
mod servers;

use anyhow::Result;
use berth_tests::{Scratch, clean_up_on_signals, repository};
use report::Report;
use servers::Servers;
use std::fs;

fn main() -> Result<()> {
    clean_up_on_signals()?;
    let scratch = Scratch::new()?;
    let servers = Servers::start(&scratch)?;
    let mut report = Report::new()?;
    measure::connections(&servers, &mut report)?;
    measure::streams(&servers, &scratch, &mut report)?;
    measure::crowd(&servers, &mut report)?;
    memory::measure(&servers, &scratch, &mut report)?;
    servers.stop()?;
    rest::measure(&scratch, &mut report)?;
    let path = repository().join("docs/benchmarks.md");
    fs::write(&path, report.render())?;
    println!("written: {}", path.display());
    Ok(())
}
