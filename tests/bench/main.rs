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
//!
//! With the names of parts as arguments it measures those and prints them.

mod asleep;
mod bare;
mod density;
mod egress;
mod measure;
mod memory;
mod report;
mod rest;
mod servers;

use anyhow::Result;
use berth_tests::{Scratch, clean_up_on_signals, repository};
use report::Report;
use servers::Servers;
use std::{env, fs};

fn main() -> Result<()> {
    clean_up_on_signals()?;
    let scratch = Scratch::new()?;
    let servers = Servers::start(&scratch)?;
    let mut report = Report::new()?;
    let parts: Vec<String> = env::args().skip(1).collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|one| one == part);
    if wanted("connections") {
        measure::connections(&servers, &mut report)?;
    }
    if wanted("streams") {
        measure::streams(&servers, &scratch, &mut report)?;
    }
    if wanted("crowd") {
        measure::crowd(&servers, &mut report)?;
    }
    if wanted("memory") {
        memory::measure(&servers, &scratch, &mut report)?;
    }
    servers.stop()?;
    if wanted("rest") {
        rest::measure(&scratch, &mut report)?;
    }
    if wanted("egress") {
        egress::measure(&mut report)?;
    }
    if wanted("idle") {
        asleep::idle(&scratch, &mut report)?;
    }
    if wanted("asleep") {
        asleep::thousand(&scratch, &mut report)?;
    }
    if wanted("density") {
        density::measure(&scratch, &mut report)?;
    }
    if !parts.is_empty() {
        print!("{}", report.render());
        return Ok(());
    }
    let path = repository().join("docs/benchmarks.md");
    fs::write(&path, report.render())?;
    println!("written: {}", path.display());
    Ok(())
}
