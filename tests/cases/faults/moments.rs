//! hostd killed in the middle of things: afterwards each is done or undone.

use super::{MINUTE, hypervisors};
use crate::{
    cases,
    context::{Case, Context},
    verbs::json,
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Service, Settings};
use serde_json::Value;
use std::{fs, thread, time::Duration};

pub const CASES: &[Case] = cases![
    OwnService:
        hostd_may_die_while_it_makes_a_machine,
        hostd_may_die_while_it_stops_or_removes_one;
];

/// Moments in a verb, from its first step to past its end. What matters is that
/// they differ; a slower host only shifts what they hit.
const MOMENTS: [u64; 5] = [15, 60, 120, 500, 1500];
/// Above what a boot may take before it counts as failed, which settles it too.
const SETTLED: Duration = Duration::from_secs(180);

/// Nothing is kept ready: every process and directory is a machine's. And none rests, for then
/// it would settle in other states than those in which a verb leaves it.
fn settings() -> Settings {
    Settings::default()
        .set("machine.memory", "256M")
        .set("idle.ready", Vec::<String>::new())
        .set("idle.pause", "6h")
        .set("idle.sleep", "12h")
}

/// Starts a verb, kills hostd a moment later and starts it again. True if the
/// verb was acknowledged.
fn cut_short(service: &Service, account: &Account, words: &str, moment: u64) -> Result<bool> {
    let verb = account.client("ssh").args(["berth", words]).start()?;
    thread::sleep(Duration::from_millis(moment));
    service.kill_hostd()?;
    service.start_hostd()?;
    Ok(verb.wait()?.status == 0)
}

fn names(account: &Account) -> Result<Vec<(String, String)>> {
    let list = json(account, "ls")?;
    let text = |one: &Value, key: &str| one.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(list.as_array().into_iter().flatten().map(|one| (text(one, "name"), text(one, "state"))).collect())
}

/// As many processes and directories as the list says, and no more.
fn consistent(service: &Service, account: &Account) -> Result<()> {
    let all = names(account)?;
    let settled = ["running", "stopped", "failed"];
    berth_tests::eventually("every machine to settle", SETTLED, || {
        Ok(names(account)?.iter().all(|(_, state)| settled.contains(&state.as_str())))
    })
    .with_context(|| format!("{:?}", names(account)))?;
    let running = names(account)?.iter().filter(|(_, state)| state == "running").count();
    berth_tests::eventually("as many processes as machines run", MINUTE, || {
        Ok(hypervisors(service)?.len() == running)
    })
    .with_context(|| format!("{all:?}, {:?}", hypervisors(service)))?;
    let directories = in_pool(service, "machines")?;
    ensure!(directories.len() == all.len(), "{all:?}, but directories {directories:?}");
    let images = in_pool(service, "images")?;
    ensure!(images.len() <= 1, "half an image was left: {images:?}");
    Ok(())
}

fn in_pool(service: &Service, name: &str) -> Result<Vec<String>> {
    let found = fs::read_dir(service.data().join("pool").join(name));
    found.into_iter().flatten().map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn hostd_may_die_while_it_makes_a_machine(context: &Context) -> Result<()> {
    context.with_service(&settings(), |service| {
        let account = service.account(context.scratch())?;
        account.verb("whoami")?.ok()?;
        // While its image is copied into the pool, which the others need not wait for.
        cut_short(service, &account, "new first", 300)?;
        consistent(service, &account).context("killed while it copied an image")?;
        if names(&account)?.is_empty() {
            account.verb("new first")?.ok()?;
        }
        account.verb("rm first")?.ok()?;
        for (number, moment) in MOMENTS.iter().enumerate() {
            let name = format!("m{number}");
            let done = cut_short(service, &account, &format!("new {name}"), *moment)?;
            consistent(service, &account).with_context(|| format!("killed after {moment} ms"))?;
            let there = names(&account)?.iter().any(|(one, _)| *one == name);
            ensure!(there || !done, "{name} was acknowledged and is gone");
            if there {
                ensure!(account.at(&name).line("hostname")? == name, "{name} cannot be used");
                account.verb(&format!("rm {name}"))?.ok()?;
            }
        }
        consistent(service, &account)
    })
}

fn hostd_may_die_while_it_stops_or_removes_one(context: &Context) -> Result<()> {
    context.with_service(&settings(), |service| {
        let account = service.account(context.scratch())?;
        account.verb("new it")?.ok()?;
        account.at("it").exec("echo kept > note; sync")?;
        for moment in MOMENTS {
            let done = cut_short(service, &account, "stop it", moment)?;
            consistent(service, &account).with_context(|| format!("killed {moment} ms into a stop"))?;
            let state = super::state(&account, "it")?;
            ensure!(!done || state == "stopped", "a stop was acknowledged, but it is {state}");
            ensure!(account.at("it").line("cat note")? == "kept", "its file is gone");
        }
        for moment in MOMENTS {
            let done = cut_short(service, &account, "rm it", moment)?;
            consistent(service, &account).with_context(|| format!("killed {moment} ms into an rm"))?;
            let there = !names(&account)?.is_empty();
            ensure!(!(done && there), "a removal was acknowledged, but it is there");
            if there {
                account.verb("rm it")?.ok()?;
            }
            account.verb("new it")?.ok()?;
        }
        Ok(())
    })
}
