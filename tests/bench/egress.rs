//! The egress bridge, measured by its own crate: there are the namespaces, the
//! servers and the clients. Here its figures only enter the report.

use crate::report::Report;
use anyhow::{Context as _, Result};
use berth_tests::{Run, repository};
use std::{env, time::Duration};

/// It may have to be built first.
const LIMIT: Duration = Duration::from_secs(3600);

pub fn measure(report: &mut Report) -> Result<()> {
    eprintln!("egress");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = repository().join("Cargo.toml");
    let output = Run::new(cargo)
        .args(["bench", "-q", "-p", "berth-egress", "--bench", "egress", "--manifest-path"])
        .arg(manifest)
        .limit(LIMIT)
        .ok()?;
    for line in output.text().lines() {
        report.egress(serde_json::from_str(line).context("a figure of the egress bridge")?);
    }
    Ok(())
}
