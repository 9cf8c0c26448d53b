//! Points in time: kept, gone back to, and undone.

use super::machine;
use crate::{
    cases,
    context::{Case, Context},
    faults::{boot_id, state},
    verbs::json,
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Remote, eventually};
use serde_json::Value;
use std::time::Duration;

/// For what hostd does in the background, on a loaded host.
const LIMIT: Duration = Duration::from_secs(60);

pub const CASES: &[Case] = cases![
    Service:
        a_restore_brings_files_and_processes_back,
        a_sleep_can_be_undone,
        a_new_machine_from_a_snapshot,
        a_stopped_machine_has_points_of_its_disk;
];

/// Something that runs under a name of its own.
fn run_as(remote: &Remote, name: &str) -> Result<()> {
    remote.exec(&format!(
        "cp /bin/sleep {name}; nohup ./{name} 5000 > /dev/null 2>&1 < /dev/null & echo {name} > note; sync"
    ))?;
    Ok(())
}

fn now(remote: &Remote) -> Result<String> {
    Ok(remote
        .line("cat note; pgrep -x old; pgrep -x new; true")?
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" "))
}

fn points(account: &Account, name: &str) -> Result<Vec<String>> {
    let list = json(account, &format!("snapshots {name}"))?;
    let point = |one: &Value| one.get("point").and_then(Value::as_str).map(str::to_owned);
    Ok(list.as_array().into_iter().flatten().filter_map(point).collect())
}

fn a_restore_brings_files_and_processes_back(context: &Context) -> Result<()> {
    let account = context.account()?;
    let dev = machine(&account, "dev")?;
    run_as(&dev, "old")?;
    let boot = boot_id(&dev)?;
    let old = now(&dev)?;
    let kept = account.verb("snapshot dev before")?.ok()?.text();
    ensure!(kept.contains("restore dev before"), "{kept}");
    account.verb("snapshot dev before")?.expect(5)?;

    dev.exec("pkill -x old; rm old")?;
    run_as(&dev, "new")?;
    let new = now(&dev)?;
    ensure!(old != new, "nothing was changed: {old}");

    account.verb("restore dev before")?.ok()?;
    ensure!(now(&dev)? == old, "after the restore: {} instead of {old}", now(&dev)?);
    ensure!(boot_id(&dev)? == boot, "it was booted again");
    dev.exec("test -e old -a ! -e new")?;
    account.verb("restore dev @1")?.ok()?;
    ensure!(now(&dev)? == new, "after the undo: {} instead of {new}", now(&dev)?);
    account.verb("restore dev before")?.ok().context("as often as one likes")?;
    ensure!(now(&dev)? == old, "the second time: {} instead of {old}", now(&dev)?);

    ensure!(points(&account, "dev")?.contains(&"before".to_owned()), "{:?}", points(&account, "dev")?);
    account.verb("snapshot rm dev before")?.ok()?;
    for words in ["restore dev before", "snapshot rm dev before", "restore dev @9", "new x --from dev/before"]
    {
        account.verb(words)?.expect(3)?;
    }
    ensure!(now(&dev)? == old, "it did not stay as it was");
    Ok(())
}

fn a_sleep_can_be_undone(context: &Context) -> Result<()> {
    let account = context.account()?;
    let dev = machine(&account, "dev")?;
    dev.exec("echo first > note")?;
    account.verb("sleep dev")?.ok()?;
    dev.exec("echo second > note")?;
    account.verb("restore dev @1")?.ok()?;
    ensure!(dev.line("cat note")? == "first", "not what it was when it slept");
    // Policy keeps three of them.
    for number in 0..5 {
        dev.exec(&format!("echo {number} > note"))?;
        account.verb("sleep dev")?.ok()?;
    }
    // What it does not keep goes some seconds after a sleep.
    eventually("older sleeps to be removed", LIMIT, || Ok(points(&account, "dev")?.len() <= 4))?;
    let kept = points(&account, "dev")?;
    ensure!(kept.contains(&"@3".to_owned()), "{kept:?}");
    account.verb("restore dev @3")?.ok()?;
    ensure!(dev.line("cat note")? == "2", "not the third last: {}", dev.line("cat note")?);
    Ok(())
}

fn a_new_machine_from_a_snapshot(context: &Context) -> Result<()> {
    let account = context.account()?;
    let dev = machine(&account, "dev")?;
    run_as(&dev, "old")?;
    let old = now(&dev)?;
    account.verb("snapshot dev point")?.ok()?;
    run_as(&dev, "new")?;
    let new = now(&dev)?;
    account.verb("new again --from dev/point")?.ok()?;
    let again = account.at("again");
    ensure!(now(&again)? == old, "not as in the snapshot: {}", now(&again)?);
    ensure!(again.line("hostname")? == "again", "it has another's name");
    ensure!(now(&dev)? == new, "the source changed");
    // It does not need what it came from any more.
    account.verb("snapshot rm dev point")?.ok()?;
    account.verb("rm dev")?.ok()?;
    account.verb("sleep again")?.ok()?;
    ensure!(now(&again)? == old, "lost with its source");
    Ok(())
}

fn a_stopped_machine_has_points_of_its_disk(context: &Context) -> Result<()> {
    let account = context.account()?;
    let dev = machine(&account, "dev")?;
    dev.exec("echo first > note")?;
    account.verb("stop dev")?.ok()?;
    account.verb("snapshot dev disk")?.ok()?;
    ensure!(dev.line("cat note; echo second > note")? == "first", "lost in a stop");
    account.verb("restore dev disk")?.ok()?;
    ensure!(dev.line("cat note")? == "first", "not the disk of the snapshot");
    account.verb("restore dev @1")?.ok()?;
    ensure!(dev.line("cat note")? == "second", "not undone");
    ensure!(state(&account, "dev")? == "running", "not running");
    Ok(())
}
