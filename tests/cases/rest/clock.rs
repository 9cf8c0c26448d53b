//! What happens by the clock, and what a stop leaves.

use super::{becomes, machine, machines, settings};
use crate::{
    cases,
    context::{Case, Context},
    faults::{MINUTE, boot_id, field, hypervisors},
};
use anyhow::{Result, ensure};
use berth_tests::eventually;
use jiff::{SignedDuration, Timestamp};
use std::fs;

pub const CASES: &[Case] = cases![
    Service:
        a_machine_removes_itself,
        a_stop_keeps_only_the_disk;
    OwnService:
        a_schedule_outlives_hostd;
];

/// Longer than it takes on a busy host to look at a machine and to copy it.
const BRIEF: &str = "90s";

fn a_machine_removes_itself(context: &Context) -> Result<()> {
    let (account, service) = (context.account()?, context.service()?);
    account.verb(&format!("new brief --memory 256M --ttl {BRIEF}"))?.ok()?;
    let id = field(&account, "brief", "/id")?;
    let list = account.verb("ls")?.ok()?.text();
    ensure!(list.contains("removes itself in "), "{list}");
    ensure!(!field(&account, "brief", "/expires")?.is_empty(), "no end in JSON");
    account.verb("snapshot brief point")?.ok()?;
    account.verb(&format!("new copy --from brief/point --ttl {BRIEF}"))?.ok()?;
    eventually("both to be gone", 4 * MINUTE, || Ok(machines(&account)?.is_empty()))?;
    account.verb("info brief")?.expect(3)?;
    ensure!(!hypervisors(service)?.iter().any(|(_, path)| path.ends_with(&id)), "its process is there");
    ensure!(!service.data().join("pool/machines").join(&id).exists(), "its files are there");
    Ok(())
}

fn a_stop_keeps_only_the_disk(context: &Context) -> Result<()> {
    let (account, service) = (context.account()?, context.service()?);
    let dev = machine(&account, "dev")?;
    let directory = service.data().join("pool/machines").join(field(&account, "dev", "/id")?);
    dev.exec("echo kept > note")?;
    let boot = boot_id(&dev)?;
    // From every state that it can be stopped in.
    for rest in ["", "sleep dev", "pause"] {
        match rest {
            "" => {}
            "pause" => {
                account.verb("idle dev --pause 3s --sleep never")?.ok()?;
                becomes(&account, "dev", "paused")?;
            }
            words => drop(account.verb(words)?.ok()?),
        }
        account.verb("stop dev")?.ok()?;
        becomes(&account, "dev", "stopped")?;
        for name in ["ram", "state"] {
            ensure!(!directory.join(name).exists(), "{name} is there after {rest:?} and a stop");
        }
        ensure!(fs::metadata(directory.join("disk"))?.len() > 0, "no disk");
        ensure!(dev.line("cat note")? == "kept", "lost after {rest:?} and a stop");
        ensure!(boot_id(&dev)? != boot, "not booted anew");
    }
    Ok(())
}

fn a_schedule_outlives_hostd(context: &Context) -> Result<()> {
    context.with_service(&settings(), |service| {
        let account = service.account(context.scratch())?;
        let dev = machine(&account, "dev")?;
        let boot = boot_id(&dev)?;
        let soon = |seconds| {
            Ok::<_, anyhow::Error>(Timestamp::now().checked_add(SignedDuration::from_secs(seconds))?)
        };
        // 1. Once, and not before it was asked why it sleeps.
        account.verb(&format!("wake dev --at {}", soon(30)?))?.ok()?;
        account.verb("sleep dev")?.ok()?;
        let why = account.verb("why dev")?.ok()?.text();
        ensure!(why.contains("wakes by itself at"), "{why}");
        becomes(&account, "dev", "running")?;
        ensure!(field(&account, "dev", "/wakes_at")?.is_empty(), "it wakes again");
        // 2. While hostd is away, and again after that.
        account.verb("wake dev --every 5s")?.ok()?;
        account.verb("sleep dev")?.ok()?;
        service.kill_hostd()?;
        service.start_hostd()?;
        becomes(&account, "dev", "running")?;
        account.verb("sleep dev")?.ok()?;
        becomes(&account, "dev", "running")?;
        // 3. Never again.
        account.verb("wake dev --never")?.ok()?;
        ensure!(field(&account, "dev", "/wakes_at")?.is_empty(), "it still wakes");
        ensure!(boot_id(&dev)? == boot, "it was booted again");
        Ok(())
    })
}
