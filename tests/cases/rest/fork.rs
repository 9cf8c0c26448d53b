//! Forks: live, consistent, and each its own.

use super::{machine, settings, sound::sound, start_program};
use crate::{
    cases,
    context::{Case, Context},
    faults::{MINUTE, state},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Remote, eventually};
use std::{collections::HashSet, fs};

pub const CASES: &[Case] = cases![
    Service:
        children_go_on_with_the_work,
        a_sleeping_machine_is_forked_in_its_sleep,
        a_fork_with_one_name;
    OwnService:
        a_copy_of_a_template_is_tried;
];

fn round(remote: &Remote) -> Result<u64> {
    remote.line("cat round")?.parse().context("no round")
}

/// The work goes on, and nothing of it is torn.
fn works(remote: &Remote) -> Result<()> {
    let before = round(remote)?;
    eventually("the work to go on", MINUTE, || Ok(round(remote)? > before + 1))?;
    remote.exec("test ! -e torn")?;
    // Every file is of one round.
    remote.exec("awk 'FNR == 1 { first = $0 } $0 != first { exit 1 }' work/[0-9]")?;
    let log = remote.line("sudo dmesg | grep -iE 'ext4.*(error|corrupt)|I/O error' || true")?;
    ensure!(log.is_empty(), "{log}");
    Ok(())
}

fn children_go_on_with_the_work(context: &Context) -> Result<()> {
    let account = context.account()?;
    let dev = machine(&account, "dev")?;
    start_program(&dev, "work.py", include_str!("../../clients/work.py"))?;
    start_program(&dev, "ticker.py", include_str!("../../clients/ticker.py"))?;
    eventually("the first rounds", MINUTE, || Ok(dev.run("test -s round -a -s longest")?.status == 0))?;
    dev.exec("echo synced > marker; sync")?;
    // What it has written since lies in many pieces, and most of it is cloned ahead.
    account.verb("snapshot dev before")?.ok()?;
    works(&dev)?;
    account.verb("snapshot dev between")?.ok()?;
    let before = round(&dev)?;

    let made = account.verb("fork dev a -n 5")?.ok()?;
    let log = fs::read_to_string(context.service()?.directory().join("berth-hostd.log"))?;
    ensure!(log.contains("cloned what had moved"), "all of its memory was cloned while it stood still");
    ensure!(made.text().lines().count() == 5, "{}", made.report());
    let gap: f64 = dev.line("cat longest")?.parse()?;
    // How long depends on whatever else the host does: `make bench` says more of it.
    eprintln!("the source's ticker did not run for {gap} ms at most, with -n 5 while it worked");

    let mut seen = HashSet::new();
    let names: Vec<String> = (1..=5).map(|number| format!("a-{number}")).collect();
    // Six tickers and six programs at once would leave the host no time for the rest.
    for name in names.iter().map(String::as_str).chain(["dev"]) {
        account.at(name).exec("pkill -f ticker.py")?;
    }
    for name in names.iter().map(String::as_str).chain(["dev"]) {
        let one = account.at(name);
        ensure!(one.line("cat marker")? == "synced", "{name} has no marker");
        ensure!(round(&one)? >= before, "{name} went back");
        works(&one).with_context(|| name.to_owned())?;
        one.exec("pkill -f work.py")?;
        let hostname = one.line("hostname")?;
        ensure!(hostname == name, "{name} calls itself {hostname}");
        let own =
            one.line("cat /etc/machine-id /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | base64")?;
        for value in own.lines() {
            ensure!(seen.insert(value.to_owned()), "{name} has {value} like another one");
        }
    }
    ensure!(seen.len() == 18, "{seen:?}");
    let tree = account.verb("tree")?.ok()?.text();
    for name in &names {
        // With nothing to do any more it may be paused by now.
        ensure!(tree.contains(&format!("  └ {name} ")), "{tree}");
    }
    remove_all(&account)
}

fn a_sleeping_machine_is_forked_in_its_sleep(context: &Context) -> Result<()> {
    let account = context.account()?;
    let dev = machine(&account, "dev")?;
    dev.exec("echo mine > note; nohup sleep 5000 > /dev/null 2>&1 < /dev/null & echo $! > pid; sync")?;
    account.verb("sleep dev")?.ok()?;
    account.verb("fork dev child")?.ok()?;
    ensure!(state(&account, "dev")? == "asleep", "the source was woken");
    let child = account.at("child");
    ensure!(child.line("cat note; ps -o comm= -p $(cat pid)")? == "mine\nsleep", "not as the source was");
    child.exec("echo theirs > note")?;
    account.verb("fork child grandchild")?.ok()?;
    ensure!(account.at("grandchild").line("cat note; hostname")? == "theirs\ngrandchild", "a fork of a fork");
    let tree = account.verb("tree")?.ok()?.text();
    // Without the states: a machine that is not used any more may be paused by now.
    let shape: Vec<&str> =
        tree.lines().map(|line| line.rsplit_once(' ').map_or(line, |(shape, _)| shape)).collect();
    ensure!(shape == ["dev", "  └ child", "    └ grandchild"], "{tree}");
    // The source is removed; what its children share with it stays.
    account.verb("rm dev")?.ok()?;
    account.verb("sleep child")?.ok()?;
    ensure!(account.at("child").line("cat note")? == "theirs", "lost with its source");
    let tree = account.verb("tree")?.ok()?.text();
    ensure!(tree.contains("(from dev, removed)"), "{tree}");
    remove_all(&account)
}

fn a_fork_with_one_name(context: &Context) -> Result<()> {
    let account = context.account()?;
    machine(&account, "main")?.exec("echo main > note; sync")?;
    account.verb("fork copy")?.ok()?;
    ensure!(account.at("copy").line("cat note; hostname")? == "main\ncopy", "not a copy of main");
    let made = account.verb("fork copy --json")?.ok()?.json()?;
    let name = made.pointer("/0/name").and_then(serde_json::Value::as_str).context("no name")?;
    ensure!(name.starts_with("copy-"), "{name}");
    ensure!(account.at(name).line("hostname")? == name, "not reached");
    remove_all(&account)
}

/// Emulated machines that compute would slow every other case down.
fn remove_all(account: &Account) -> Result<()> {
    let names: Vec<String> = super::machines(account)?.into_iter().map(|(name, _)| name).collect();
    account.verb(&format!("rm {}", names.join(" ")))?.ok()?;
    Ok(())
}

/// What a copy touches until a first command has ended is known once one was run for
/// nobody, of which nothing is left.
fn a_copy_of_a_template_is_tried(context: &Context) -> Result<()> {
    context.with_service(&settings(), |service| {
        let account = service.account(context.scratch())?;
        let generations = service.data().join("pool/generations");
        let mut touched = 0;
        eventually("a copy to be tried", 3 * MINUTE, || {
            let found = fs::read_dir(&generations)?
                .find_map(|entry| fs::read_to_string(entry.ok()?.path().join("touched")).ok());
            touched = found.as_deref().map_or(0, |text| text.lines().filter_map(length).sum());
            Ok(found.is_some())
        })?;
        // A kernel and a shell are some megabytes, and the rest of it is not asked for.
        ensure!((4 << 20..128 << 20).contains(&touched), "{touched} bytes were touched");
        sound(service, &account)?;
        ensure!(machine(&account, "dev")?.line("echo well")? == "well", "its copy");
        Ok(())
    })
}

fn length(line: &str) -> Option<u64> {
    let (start, end) = line.split_once('-')?;
    u64::from_str_radix(end, 16).ok()?.checked_sub(u64::from_str_radix(start, 16).ok()?)
}
