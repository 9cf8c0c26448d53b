//! Sleep, wake, fork, snapshot and restore: nothing is lost on the way.

pub mod clock;
pub mod fork;
pub mod killed;
pub mod mistakes;
pub mod races;
pub mod random;
pub mod session;
pub mod sleep;
pub mod snapshot;
pub mod sound;
pub mod walk;

use crate::{
    faults::{MINUTE, state},
    verbs::json,
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Remote, Settings, eventually};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Light machines, of which one is kept booted.
fn settings() -> Settings {
    Settings::default().set("machine.memory", "256M").set("idle.ready", vec!["256M"])
}

/// A light machine.
fn machine(account: &Account, name: &str) -> Result<Remote> {
    account.verb(&format!("new {name} --memory 256M"))?.ok()?;
    Ok(account.at(name))
}

/// A program of `tests/clients` that goes on when nobody is there any more.
fn start_program(remote: &Remote, name: &str, text: &str) -> Result<()> {
    remote.write(name, text)?;
    remote.exec(&format!("nohup python3 {name} > {name}.log 2>&1 < /dev/null &"))?;
    Ok(())
}

/// Waits until a machine is in this state.
fn becomes(account: &Account, name: &str, wanted: &str) -> Result<()> {
    let what = format!("{name} to be {wanted}");
    eventually(&what, 2 * MINUTE, || Ok(state(account, name)? == wanted)).with_context(|| {
        let why = account.verb(&format!("why {name}")).map(|out| out.text()).unwrap_or_default();
        format!("it is {}: {why}", state(account, name).unwrap_or_default())
    })
}

/// A machine is in this state whenever one looks, for as long as this.
fn stays(account: &Account, name: &str, wanted: &str, time: Duration) -> Result<()> {
    let started = Instant::now();
    while started.elapsed() < time {
        let now = state(account, name)?;
        ensure!(now == wanted, "{name} is {now} after {} s", started.elapsed().as_secs());
    }
    Ok(())
}

/// Every machine that there is, with its state.
fn machines(account: &Account) -> Result<Vec<(String, String)>> {
    let list = json(account, "ls")?;
    let text = |one: &Value, key: &str| one.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(list.as_array().into_iter().flatten().map(|one| (text(one, "name"), text(one, "state"))).collect())
}
