//! The bridge dies, and while it does nothing passes.

use super::{World, curl, fresh_value, welcomed};
use crate::context::{Case, Context};
use anyhow::{Context as _, Result, ensure};
use berth_tests::eventually;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{fs, time::Duration};

pub const CASES: &[Case] = crate::cases! {
    Service: a_killed_bridge_comes_back_and_nothing_passes_meanwhile;
};

/// hostd's child of that name.
fn bridge(world: &World) -> Result<Pid> {
    let hostd = world.service.hostd_pid()?;
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<i32>().ok());
        if parent == Some(hostd) && stat.contains("(berth-bridge)") {
            return Ok(Pid::from_raw(pid));
        }
    }
    anyhow::bail!("hostd has no bridge")
}

fn a_killed_bridge_comes_back_and_nothing_passes_meanwhile(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.alone();
    let dev = world.machine("dev")?;
    let value = fresh_value("sk-killed")?;
    world.set("killed --to killed.upstream.example --header Authorization: Bearer {}", &value)?;
    world.expect("killed", &format!("Bearer {value}"))?;
    let url = "https://killed.upstream.example/killed";
    welcomed(&dev, url)?;
    // Unprivileged, with nothing but what it needs.
    let first = bridge(world)?;
    let status = fs::read_to_string(format!("/proc/{first}/status"))?;
    for line in ["Uid:\t699999\t699999", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
        ensure!(status.contains(line), "no '{line}' in {status}");
    }
    // One that stands still serves nobody, and nobody else does.
    kill(first, Signal::SIGSTOP)?;
    let stuck = curl(&dev, &format!("--max-time 4 {url}"))?;
    ensure!(stuck.status != 0, "something passed without a bridge: {}", stuck.report());
    kill(first, Signal::SIGKILL)?;
    eventually(
        "another bridge",
        Duration::from_secs(90),
        || Ok(bridge(world).is_ok_and(|now| now != first)),
    )?;
    eventually("machines to be served again", Duration::from_secs(180), || {
        Ok(curl(&dev, url)?.line() == "welcome")
    })
    .context("with the same secrets as before")
}
