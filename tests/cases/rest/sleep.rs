//! Falling asleep by itself, and waking where it was.

use super::{becomes, machine, start_program, stays};
use crate::{
    cases,
    context::{Case, Context},
    faults::{MINUTE, boot_id, field, hypervisors},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Remote, Service, eventually};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub const CASES: &[Case] = cases![
    Service:
        everything_goes_on_after_a_sleep,
        work_in_the_background_keeps_it_awake,
        a_keepalive_keeps_it_awake,
        a_wake_runs_nothing_of_the_users,
        ten_connections_wake_it_once;
];

/// Short, and longer than a connection takes on a busy host.
const POLICY: &str = "--pause 3s --sleep 6s";

/// What `life.py` says: process id, count, lines of its file.
fn life(remote: &Remote) -> Result<[u64; 3]> {
    let said = remote.line("python3 -c 'import socket; print(socket.create_connection((\"127.0.0.1\", 7000)).makefile().read())'")?;
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().ok().with_context(|| format!("it says {said:?}"))
}

fn live(remote: &Remote) -> Result<()> {
    start_program(remote, "life.py", include_str!("../../clients/life.py"))?;
    eventually("the server to answer", MINUTE, || Ok(life(remote).is_ok()))
}

fn has_process(service: &Service, id: &str) -> Result<bool> {
    Ok(hypervisors(service)?.iter().any(|(_, directory)| directory.ends_with(id)))
}

fn now() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

fn everything_goes_on_after_a_sleep(context: &Context) -> Result<()> {
    let (account, service) = (context.account()?, context.service()?);
    let dev = machine(&account, "dev")?;
    let id = field(&account, "dev", "/id")?;
    live(&dev)?;
    dev.exec("tmux new-session -d -s work; tmux send-keys -t work 'answer=42' Enter")?;
    let boot = boot_id(&dev)?;
    let [pid, count, lines] = life(&dev)?;

    account.verb(&format!("idle dev {POLICY}"))?.ok()?;
    becomes(&account, "dev", "asleep")?;
    ensure!(!has_process(service, &id)?, "its hypervisor is there");
    let why = account.verb("why dev")?.ok()?.text();
    ensure!(why.contains("asleep"), "{why}");

    let before = now()?;
    let inside: u64 = dev.line("date +%s")?.parse()?;
    let after = now()?;
    ensure!((before..=after).contains(&inside), "it is {before} to {after}, and {inside} inside");
    ensure!(boot_id(&dev)? == boot, "it was booted again");
    let [same, later, more] = life(&dev)?;
    ensure!(same == pid, "another process serves");
    ensure!(later > count, "the count went from {count} to {later}");
    ensure!(more == lines + 1, "the file had {lines} lines, and has {more}");
    dev.exec("tmux send-keys -t work 'echo the answer is $answer' Enter")?;
    eventually("the tmux session to answer", MINUTE, || {
        Ok(dev.line("tmux capture-pane -p -t work")?.contains("\nthe answer is 42"))
    })
}

fn work_in_the_background_keeps_it_awake(context: &Context) -> Result<()> {
    let account = context.account()?;
    let busy = machine(&account, "busy")?;
    // On each of its CPUs, so that it counts as busy where it gets only a small part of them.
    let burner = "nohup sh -c 'while :; do :; done' > /dev/null 2>&1 < /dev/null & echo $! >> burners";
    busy.exec(&format!("for cpu in $(seq $(nproc)); do {burner}; done"))?;
    // Many looks at its CPU use must find too little of it, one after the other, before it rests.
    account.verb("idle busy --pause 10s --sleep 12s")?.ok()?;
    stays(&account, "busy", "running", Duration::from_secs(25))?;
    eventually("its work to be the reason", MINUTE, || {
        let why = account.verb("why busy")?.ok()?.text();
        Ok(why.contains("awake because it uses") && why.contains("% of a CPU"))
    })?;
    busy.exec("kill $(cat burners)")?;
    becomes(&account, "busy", "asleep")
}

fn a_keepalive_keeps_it_awake(context: &Context) -> Result<()> {
    let account = context.account()?;
    machine(&account, "kept")?;
    account.verb("keepalive kept 1h")?.ok()?;
    account.verb(&format!("idle kept {POLICY}"))?.ok()?;
    stays(&account, "kept", "running", Duration::from_secs(12))?;
    let why = account.verb("why kept")?.ok()?.text();
    ensure!(why.contains("keepalive until"), "{why}");
    account.verb("keepalive kept off")?.ok()?;
    becomes(&account, "kept", "asleep")?;
    let info = account.verb("idle kept --default")?.ok()?.text();
    ensure!(info.contains("10m"), "{info}");
    Ok(())
}

/// Without KVM a machine runs a shell for nobody when it wakes, so that the first
/// one for somebody is faster. Nobody may notice.
fn a_wake_runs_nothing_of_the_users(context: &Context) -> Result<()> {
    let account = context.account()?;
    let dev = machine(&account, "dev")?;
    dev.exec("echo 'echo ran >> /tmp/ran' | tee start.sh > .bashrc; chmod 666 start.sh")?;
    dev.exec("echo BASH_ENV=/home/dev/start.sh | sudo tee -a /etc/environment > /dev/null")?;
    let ran = || dev.line("wc -l < /tmp/ran")?.parse::<u64>().context("a number");
    let (first, second) = (ran()?, ran()?);
    ensure!(second > first, "a command reads no file that starts shells");
    // The second time it knows of the variable.
    for _ in 0..2 {
        account.verb("sleep dev")?.ok()?;
        account.verb("wake dev")?.ok()?;
    }
    let third = ran()?;
    ensure!(third - second == second - first, "after {first} and {second} it is {third}");
    Ok(())
}

fn ten_connections_wake_it_once(context: &Context) -> Result<()> {
    let (account, service) = (context.account()?, context.service()?);
    let dev = machine(&account, "dev")?;
    let id = field(&account, "dev", "/id")?;
    live(&dev)?;
    let [pid, ..] = life(&dev)?;
    account.verb("sleep dev")?.ok()?;
    ensure!(!has_process(service, &id)?, "its hypervisor is there");
    let all: Vec<_> = (0..10)
        .map(|number| dev.ssh(&[]).arg(format!("echo {number} $(pgrep -f life.py | head -1)")).start())
        .collect::<Result<_>>()?;
    for (number, one) in all.into_iter().enumerate() {
        let said = one.wait()?.ok()?.line();
        ensure!(said == format!("{number} {pid}"), "connection {number} says {said}");
    }
    let running = hypervisors(service)?.into_iter().filter(|(_, directory)| directory.ends_with(&id)).count();
    ensure!(running == 1, "{running} processes");
    Ok(())
}
