//! Hypervisors and the gateway killed in the middle of sleep, wake and fork.

use super::{machine, machines, settings, sound::sound};
use crate::{
    cases,
    context::{Case, Context},
    faults::{MINUTE, field, hypervisors, state},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Service, eventually};
use nix::sys::signal::{Signal, kill};
use std::{
    thread,
    time::{Duration, Instant},
};

pub const CASES: &[Case] = cases![
    OwnService:
        a_hypervisor_may_die_at_any_moment,
        the_gateway_may_die_at_any_moment,
        memory_that_cannot_be_resumed_falls_back_to_the_disk;
];

/// Moments in a verb. What matters is that they differ.
const MOMENTS: [u64; 3] = [20, 120, 350];
const VERBS: [(&str, &str); 4] =
    [("", "sleep dev"), ("sleep dev", "wake dev"), ("", "fork dev child"), ("", "restore dev base")];

/// Its data can be had: by a connection, or after the restart that is asked for.
fn note(account: &Account) -> Result<String> {
    let dev = account.at("dev");
    let out = dev.run("cat note")?;
    if out.status == 0 {
        return Ok(out.line());
    }
    eventually("its failure to be seen", MINUTE, || {
        Ok(["failed", "asleep", "stopped"].contains(&state(account, "dev")?.as_str()))
    })
    .with_context(|| out.report())?;
    account.verb("restart dev")?.ok()?;
    dev.line("cat note")
}

fn clear_away(account: &Account) -> Result<()> {
    for (name, _) in machines(account)? {
        if name != "dev" {
            account.verb(&format!("rm {name}"))?.ok()?;
        }
    }
    Ok(())
}

/// Kills the first process of a machine that there is from this moment on.
fn kill_soon(service: &Service, id: &str, moment: Duration) -> Result<()> {
    let started = Instant::now();
    thread::sleep(moment);
    while started.elapsed() < moment + Duration::from_secs(1) {
        if let Some((pid, _)) = hypervisors(service)?.into_iter().find(|(_, path)| path.ends_with(id)) {
            // It may end by itself at the same moment.
            let _ = kill(pid, Signal::SIGKILL);
            return Ok(());
        }
    }
    Ok(())
}

fn a_hypervisor_may_die_at_any_moment(context: &Context) -> Result<()> {
    context.with_service(&settings(), |service| {
        let account = service.account(context.scratch())?;
        let dev = machine(&account, "dev")?;
        let id = field(&account, "dev", "/id")?;
        dev.exec("echo base > note; sync")?;
        account.verb("snapshot dev base")?.ok()?;
        for (before, words) in VERBS {
            for moment in MOMENTS {
                let what = format!("{moment} ms into '{words}'");
                let value = what.replace(['\'', ' '], "");
                dev.exec(&format!("echo {value} > note; sync"))?;
                if !before.is_empty() {
                    account.verb(before)?.ok()?;
                }
                let verb = account.client("ssh").args(["berth", "--", words]).start()?;
                kill_soon(service, &id, Duration::from_millis(moment))?;
                let out = verb.wait().with_context(|| what.clone())?;
                let found = note(&account).with_context(|| what.clone())?;
                let back = words.starts_with("restore") && found == "base";
                ensure!(found == value || back, "{what}: its file says {found:?}: {}", out.report());
                clear_away(&account)?;
                sound(service, &account).with_context(|| what.clone())?;
            }
        }
        Ok(())
    })
}

fn the_gateway_may_die_at_any_moment(context: &Context) -> Result<()> {
    context.with_service(&settings(), |service| {
        let account = service.account(context.scratch())?;
        let dev = machine(&account, "dev")?;
        dev.exec("echo base > note; sync")?;
        account.verb("snapshot dev base")?.ok()?;
        for (before, words) in VERBS {
            if !before.is_empty() {
                account.verb(before)?.ok()?;
            }
            let verb = account.client("ssh").args(["berth", "--", words]).start()?;
            thread::sleep(Duration::from_millis(120));
            service.kill_gateway()?;
            verb.wait()?;
            service.start_gateway()?;
            ensure!(dev.line("cat note")? == "base", "lost in '{words}'");
            sound(service, &account).with_context(|| words.to_owned())?;
            clear_away(&account)?;
        }
        Ok(())
    })
}

fn memory_that_cannot_be_resumed_falls_back_to_the_disk(context: &Context) -> Result<()> {
    context.with_service(&settings(), |service| {
        let account = service.account(context.scratch())?;
        let dev = machine(&account, "dev")?;
        dev.exec("echo kept > note; sync")?;
        account.verb("sleep dev")?.ok()?;
        let generations = service.data().join("pool/generations");
        let mut spoilt = 0;
        for entry in std::fs::read_dir(&generations)? {
            let path = entry?.path();
            let manifest = std::fs::read_to_string(path.join("manifest.json"))?;
            if manifest.contains("\"dev\"") {
                std::fs::write(path.join("state"), b"garbage")?;
                spoilt += 1;
            }
        }
        ensure!(spoilt == 1, "{spoilt} sleeps of dev");
        ensure!(dev.line("cat note")? == "kept", "its disk was not used");
        let list = account.verb("ls")?.ok()?.text();
        ensure!(list.contains("could not be resumed"), "not loudly: {list}");
        Ok(())
    })
}
