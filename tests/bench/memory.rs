//! (d) Memory of the daemons: idle, with 50 sessions, with 1,000 machines.

use crate::{measure::median, report::Report, servers::Servers};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Running, Scratch, Service, Settings, eventually};
use berth_types::{Machine, Size, UserId};
use std::{fs, path::Path, time::Duration};

const LIMIT: Duration = Duration::from_secs(600);
const MACHINES: u32 = 1000;

pub fn measure(servers: &Servers, scratch: &Scratch, report: &mut Report) -> Result<()> {
    eprintln!("memory");
    let idle = Service::start(scratch, &Settings::default().set("service.log", "info"))?;
    report.memory("idle, just started", gateway(&idle)?, hostd(&idle)?);
    idle.stop()?;

    let machine = servers.machine();
    let before = (gateway(&servers.service)?, hostd(&servers.service)?);
    report.memory("with one machine, after the figures above", before.0, before.1);
    let sessions: Vec<Running> = (0..50)
        .map(|_| machine.ssh(&[]).arg("echo here; cat").open_input().limit(LIMIT).start())
        .collect::<Result<_>>()?;
    eventually("50 sessions", LIMIT, || {
        let here = sessions.iter().map(|one| Ok(one.said()? == "here\n")).collect::<Result<Vec<_>>>()?;
        Ok(here.into_iter().all(|here| here))
    })?;
    report.memory("with 50 sessions in one machine", gateway(&servers.service)?, hostd(&servers.service)?);
    drop(sessions);
    thousand(scratch, report)
}

/// Registers many machines as a restored pool would bring them: directories
/// with their records, from which hostd rebuilds an empty store.
fn thousand(scratch: &Scratch, report: &mut Report) -> Result<()> {
    let settings =
        Settings::default().set("service.log", "info").set("quota.machines", i64::from(MACHINES) + 10);
    let service = Service::start(scratch, &settings)?;
    let account = service.account(scratch)?;
    let few = times(&account)?;
    let user = account.verb("whoami --json")?.ok()?.json()?;
    let user: UserId = serde_json::from_value(user.get("user").cloned().context("no user")?)?;
    service.end_hostd()?;
    let machines = service.data().join("pool/machines");
    for number in 0..MACHINES {
        register(&machines, &user, number, |_| {})?;
    }
    service.start_hostd()?;
    ensure!(service.status()?.machines == MACHINES, "not all machines were registered");
    report.memory("with 1,000 registered machines", gateway(&service)?, hostd(&service)?);
    let many = times(&account)?;
    report.note(format!(
        "`info NAME` of a machine that is not there, a new connection: {few:.0} ms with no machines, \
         {many:.0} ms with 1,000."
    ));
    service.stop()
}

/// A request that reads one machine.
fn times(account: &Account) -> Result<f64> {
    account.verb("whoami")?.ok()?;
    let mut all = Vec::new();
    for _ in 0..15 {
        all.push(account.verb("info nobody")?.expect(3)?.elapsed.as_secs_f64() * 1000.0);
    }
    Ok(median(all))
}

/// A machine's directory with its record, `m-NUMBER`.
pub fn register(machines: &Path, owner: &UserId, number: u32, change: impl Fn(&mut Machine)) -> Result<()> {
    let size = Size { cpus: 1, memory: "1G".parse()?, disk: "10G".parse()? };
    let mut machine = Machine::new(owner.clone(), format!("m-{number}").parse()?, "debian".into(), size);
    machine.uid = 2_000_000_000 + number;
    change(&mut machine);
    let directory = machines.join(machine.id.as_str());
    fs::create_dir(&directory)?;
    fs::write(directory.join("machine.json"), serde_json::to_vec(&machine)?)?;
    Ok(())
}

fn gateway(service: &Service) -> Result<f64> {
    proportional(service.gateway_pid()?)
}

pub fn hostd(service: &Service) -> Result<f64> {
    proportional(service.hostd_pid()?)
}

/// MiB that a process has, shared pages counted by their share.
fn proportional(pid: i32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib / 1024.0)
}
