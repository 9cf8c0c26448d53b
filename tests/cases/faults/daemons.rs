//! Daemons that die or are stopped.

use super::{MINUTE, boot_id, longest_gap, start_counting, state};
use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Service, Settings, UNIT, eventually};
use std::{fs, os::unix::fs::symlink};

pub const CASES: &[Case] = cases![
    OwnService:
        a_killed_hostd_costs_no_beat,
        a_killed_gateway_costs_no_beat,
        hostd_needs_no_more_than_its_unit_leaves_it,
        a_service_stops_and_starts_with_every_file,
        run_serves_until_it_is_told_to_stop;
];

/// The counter beats five times a second or so, and a machine that was started
/// anew would have no counter at all; what is allowed for is a host with other
/// work to do.
const BEAT: f64 = 20.0;

fn a_killed_hostd_costs_no_beat(context: &Context) -> Result<()> {
    context.with_service(&Settings::default(), |service| {
        let account = service.account(context.scratch())?;
        account.verb("new main")?.ok()?;
        let main = account.at("main");
        start_counting(&main)?;
        let boot = boot_id(&main)?;
        let before = account.verb("ls --json")?.ok()?.json()?;
        let mut session = main.ssh(&[]).arg("cat").open_input().start()?;
        session.write(b"before\n")?;
        eventually("the session", MINUTE, || Ok(session.said()? == "before\n"))?;

        service.kill_hostd()?;
        let away = account.verb("ls")?.expect(7)?;
        ensure!(away.errors().starts_with("berth: the host is unavailable: "), "{}", away.report());
        session.write(b"meanwhile\n")?;
        eventually("an open session to go on", MINUTE, || Ok(session.said()?.ends_with("meanwhile\n")))?;

        service.start_hostd()?;
        ensure!(boot_id(&main)? == boot, "it was booted again");
        let after = account.verb("ls --json")?.ok()?.json()?;
        for key in ["/0/id", "/0/state", "/0/created", "/0/memory"] {
            ensure!(before.pointer(key) == after.pointer(key), "{key}: {before} became {after}");
        }
        session.write(b"after\n")?;
        session.close_input();
        ensure!(session.wait()?.ok()?.text() == "before\nmeanwhile\nafter\n", "the session lost something");
        let gap = longest_gap(&main)?;
        ensure!(gap < BEAT, "{gap} s without a beat");
        account.verb("new another --memory 256M")?.ok()?;
        account.verb("stop main")?.ok().context("one that was adopted")?;
        ensure!(state(&account, "main")? == "stopped", "not stopped");
        Ok(())
    })
}

fn a_killed_gateway_costs_no_beat(context: &Context) -> Result<()> {
    context.with_service(&Settings::default(), |service| {
        let account = service.account(context.scratch())?;
        account.verb("new main")?.ok()?;
        let main = account.at("main");
        start_counting(&main)?;
        let session = main.ssh(&[]).arg("sleep 1000").start()?;
        eventually("the session", MINUTE, || Ok(main.run("pgrep -x sleep")?.status == 0))?;
        service.kill_gateway()?;
        ensure!(session.wait()?.status == 255, "a session without a gateway");
        service.start_gateway()?;
        // The host keys are the old ones: this account's known_hosts has them.
        ensure!(main.line("hostname")? == "main", "not reached again");
        let gap = longest_gap(&main)?;
        ensure!(gap < BEAT, "{gap} s without a beat");
        Ok(())
    })
}

/// systemd itself cannot be started here: what it takes from hostd is taken by hand, and what
/// it would refuse by filters, and hostd calls, must not be in the unit.
fn hostd_needs_no_more_than_its_unit_leaves_it(context: &Context) -> Result<()> {
    for refused in ["RestrictNamespaces", "RestrictSUIDSGID", "RestrictRealtime", "MemoryDenyWriteExecute"] {
        let line = UNIT.lines().find(|line| line.starts_with(refused));
        ensure!(line.is_none_or(|line| line.ends_with("=no")), "the unit refuses what hostd calls: {line:?}");
    }
    let settings = Settings::default().set("idle.ready", Vec::<String>::new());
    context.with_service(&settings, |service| {
        service.end_hostd()?;
        service.start_hostd_as_its_unit()?;
        let account = service.account(context.scratch())?;
        account.verb("new main --memory 256M")?.ok()?;
        let main = account.at("main");
        let boot = boot_id(&main)?;
        account.verb("sleep main")?.ok()?;
        ensure!(boot_id(&main)? == boot, "its memory was not resumed");
        account.verb("fork main child")?.ok()?;
        let session = main.ssh(&[]).arg("sleep 1000").start()?;
        eventually("the session", MINUTE, || Ok(main.run("pgrep -x sleep")?.status == 0))?;
        service.end_hostd()?;
        service.start_hostd_as_its_unit()?;
        ensure!(boot_id(&main)? == boot, "it was booted again");
        ensure!(main.run("pgrep -x sleep")?.status == 0, "its processes are gone");
        drop(session);
        account.verb("rm main child")?.ok().map(drop)
    })
}

fn a_service_stops_and_starts_with_every_file(context: &Context) -> Result<()> {
    let service = Service::prepare(context.scratch(), &Settings::default())?;
    // As on a host whose /var is small.
    let elsewhere = service.directory().join("large-disk");
    fs::create_dir(&elsewhere)?;
    symlink(&elsewhere, service.data())?;
    service.berth_ok(&["up"])?;
    let tested = (|| {
        let account = service.account(context.scratch())?;
        account.verb("new main")?.ok()?;
        account.verb("new resting --memory 256M")?.ok()?;
        account.verb("stop resting")?.ok()?;
        let main = account.at("main");
        main.exec("head -c 3000000 /dev/urandom > data; md5sum data > sum; echo precious > note")?;
        main.exec("nohup sleep 100000 > /dev/null 2>&1 & echo $! > pid")?;
        service.berth_ok(&["status"])?;
        service.berth_ok(&["up"]).context("up when it is up")?;
        service.berth_ok(&["down"])?;
        let gone = account.verb("ls")?;
        ensure!(gone.status == 255, "it still answers: {}", gone.report());
        ensure!(super::hypervisors(&service)?.is_empty(), "machines still run");
        service.berth_ok(&["down"]).context("down when it is down")?;

        service.berth_ok(&["up"])?;
        ensure!(state(&account, "resting")? == "stopped", "not as it was");
        ensure!(state(&account, "main")? == "asleep", "it does not sleep");
        ensure!(main.line("md5sum --quiet -c sum && cat note")? == "precious", "a file is lost");
        ensure!(main.line("ps -o comm= -p $(cat pid)")? == "sleep", "a process is lost");
        Ok(())
    })();
    let down = service.berth_ok(&["down"]);
    tested.and(down.map(drop)).with_context(|| service.logs())
}

fn run_serves_until_it_is_told_to_stop(context: &Context) -> Result<()> {
    let service = Service::prepare(context.scratch(), &Settings::default())?;
    let mut running = service.berth(&["run"])?.start()?;
    let port = service.endpoint().address.port();
    let line = format!("ssh -p {port} localhost");
    eventually("the line to paste", MINUTE, || {
        ensure!(running.is_running()?, "it ended: {}", running.complained()?);
        Ok(running.said()?.contains(&line) || running.complained()?.contains(&line))
    })?;
    let account = service.account(context.scratch())?;
    account.verb("new main --memory 256M")?.ok()?;
    account.at("main").exec("echo kept > note")?;
    let second = service.berth(&["run"])?.finish()?;
    ensure!(second.status != 0 && second.errors().contains("berth: "), "two at once: {}", second.report());
    running.signal(nix::sys::signal::Signal::SIGINT)?;
    let ended = running.wait()?;
    ensure!([0, 130].contains(&ended.status), "{}", ended.report());
    ensure!(super::hypervisors(&service)?.is_empty(), "machines still run");
    Ok(())
}
