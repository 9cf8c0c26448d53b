//! Machines that break, and their neighbours who do not notice.

use super::{MINUTE, boot_id, failed, hypervisor, signal, state};
use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Result, ensure};
use berth_tests::{Account, Settings};
use nix::sys::signal::Signal;

pub const CASES: &[Case] = cases![
    Service:
        a_full_disk_is_its_machines_problem,
        a_machine_writes_on_when_its_caches_are_gone,
        a_panic_fails_that_machine;
    OwnService:
        a_killed_hypervisor_loses_no_synced_file,
        a_guest_that_hangs_is_found_out,
        a_guest_that_sends_garbage_is_found_out;
];

/// A machine to break and one that must not notice.
fn two(account: &Account) -> Result<String> {
    account.verb("new broken --memory 256M")?.ok()?;
    account.verb("new bystander --memory 256M")?.ok()?;
    account.at("broken").exec("echo kept > note; sync")?;
    boot_id(&account.at("bystander"))
}

/// After the fault: told, seen, mended; the other one is as it was.
fn recovers(account: &Account, bystander: &str) -> Result<()> {
    let list = account.verb("ls")?.ok()?.text();
    ensure!(list.lines().any(|line| line.starts_with("broken") && line.contains("failed")), "{list}");
    ensure!(boot_id(&account.at("bystander"))? == bystander, "the bystander was booted again");
    account.verb("info broken --console")?.ok()?;
    account.verb("restart broken")?.ok()?;
    ensure!(state(account, "broken")? == "running", "not running again");
    ensure!(account.at("broken").line("cat note")? == "kept", "its file is gone");
    Ok(())
}

fn a_full_disk_is_its_machines_problem(context: &Context) -> Result<()> {
    let account = context.account()?;
    account.verb("new full --memory 256M --disk 2G")?.ok()?;
    let full = account.at("full");
    let out = full.ssh(&[]).arg("fallocate -l 1900M big; cat /dev/zero > rest").limit(3 * MINUTE).finish()?;
    ensure!(out.status == 1 && out.errors().contains("No space left"), "{}", out.report());
    ensure!(full.run("echo x > more; sync; test -s more")?.status != 0, "there was room");
    ensure!(full.line("hostname")? == "full", "it does not answer any more");
    ensure!(state(&account, "full")? == "running", "it does not run any more");
    full.exec("rm big rest && echo room > more")?;
    ensure!(context.remote("session")?.line("echo well")? == "well", "another machine");
    Ok(())
}

/// What a shortage of memory does to the caches, at once: there were kernels that
/// could not write any more after it, and stood still with the filesystem locked.
fn a_machine_writes_on_when_its_caches_are_gone(context: &Context) -> Result<()> {
    let account = context.account()?;
    account.verb("new thirsty --memory 256M")?.ok()?;
    let thirsty = account.at("thirsty");
    thirsty.exec("sync; echo 3 | sudo tee /proc/sys/vm/drop_caches")?;
    let write = "dd if=/dev/urandom of=data bs=1M count=8 conv=fsync 2>/dev/null && sync";
    thirsty.ssh(&[]).arg(write).limit(3 * MINUTE).finish()?.ok()?;
    let console = account.verb("info thirsty --console")?.ok()?.text();
    ensure!(!console.contains("BUG:") && !console.contains("Oops"), "{console}");
    Ok(())
}

fn a_panic_fails_that_machine(context: &Context) -> Result<()> {
    let account = context.account()?;
    let bystander = two(&account)?;
    let session =
        account.at("broken").ssh(&[]).arg("echo c | sudo tee /proc/sysrq-trigger; sleep 1000").start()?;
    let reason = failed(&account, "broken")?;
    ensure!(reason.contains("panic"), "{reason}");
    let console = account.verb("info broken --console")?.ok()?.text();
    ensure!(console.contains("panic"), "the console: {console}");
    // Whoever was in it is not left waiting for a machine that is gone.
    let out = session.wait()?;
    ensure!(out.status != 0, "{}", out.report());
    recovers(&account, &bystander)
}

fn a_killed_hypervisor_loses_no_synced_file(context: &Context) -> Result<()> {
    context.with_service(&Settings::default(), |service| {
        let account = service.account(context.scratch())?;
        let bystander = two(&account)?;
        signal(hypervisor(service, &account, "broken")?, Signal::SIGKILL)?;
        failed(&account, "broken")?;
        recovers(&account, &bystander)
    })
}

fn a_guest_that_hangs_is_found_out(context: &Context) -> Result<()> {
    context.with_service(&Settings::default().set("machine.silence_timeout", "20s"), |service| {
        let account = service.account(context.scratch())?;
        let bystander = two(&account)?;
        signal(hypervisor(service, &account, "broken")?, Signal::SIGSTOP)?;
        let reason = failed(&account, "broken")?;
        ensure!(reason.contains("not answer"), "{reason}");
        recovers(&account, &bystander)
    })
}

fn a_guest_that_sends_garbage_is_found_out(context: &Context) -> Result<()> {
    context.with_service(&Settings::default(), |service| {
        let account = service.account(context.scratch())?;
        let bystander = two(&account)?;
        let broken = account.at("broken");
        broken.write("evil.py", include_str!("../../clients/evil.py"))?;
        // The session may end with the machine that it is in.
        let _session = broken.ssh(&[]).arg("sudo python3 evil.py").start()?;
        let reason = failed(&account, "broken")?;
        ensure!(!reason.is_empty(), "no reason");
        recovers(&account, &bystander)
    })
}
