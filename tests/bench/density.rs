//! What forks cost that read the same memory. Each has its RAM in a file of
//! its own, so what it reads is page cache of its own; but clean page cache is
//! the host's to take back, and what it cannot take back is what counts.

use crate::report::Report;
use anyhow::{Context as _, Result};
use berth_tests::{Scratch, Service, Settings};
use std::fs;

const FORKS: u32 = 10;
const SHARED: &str = "500M";

pub fn measure(scratch: &Scratch, report: &mut Report) -> Result<()> {
    eprintln!("{FORKS} forks that read the same {SHARED}");
    let settings = Settings::default()
        .set("service.log", "info")
        .set("idle.ready", vec!["1G"])
        .set("host.memory", "32G")
        .set("quota.memory", "32G");
    let service = Service::start(scratch, &settings)?;
    let account = service.account(scratch)?;
    account.verb("new dev --memory 1G")?.ok()?;
    // In the guest's own page cache: part of its RAM.
    account.at("dev").exec(&format!("head -c {SHARED} /dev/urandom > x && sync && cat x > /dev/null"))?;
    let before = Memory::now()?;
    account.verb(&format!("fork dev kid -n {FORKS}"))?.ok()?;
    let idle = Memory::now()?;
    for kid in 1..=FORKS {
        account.at(&format!("kid-{kid}")).exec("cat x > /dev/null")?;
    }
    let after = Memory::now()?;
    report.note(format!(
        "{FORKS} forks of 1 GiB: each takes {:.0} MiB that the host cannot take back, {:.0} once it has read the \
         same {SHARED} as the others, and {:.0} MiB of page cache that it can.",
        each(idle.taken - before.taken),
        each(after.taken - before.taken),
        each(after.cached - before.cached),
    ));
    service.stop()
}

fn each(kibibytes: i64) -> f64 {
    kibibytes as f64 / 1024.0 / f64::from(FORKS)
}

/// The host's, in KiB.
struct Memory {
    /// Not available to others, by the kernel's own estimate.
    taken: i64,
    cached: i64,
}

impl Memory {
    fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let field = |name: &str| -> Result<i64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let value = line.and_then(|line| line.split_whitespace().next());
            value.with_context(|| format!("no {name} in /proc/meminfo"))?.parse().context("not a number")
        };
        Ok(Self { taken: field("MemTotal")? - field("MemAvailable")?, cached: field("Cached")? })
    }
}
