//! Too much of something: space, logins, sessions.

use super::{MINUTE, boot_id};
use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Run, Running, Settings, eventually};
use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
};

pub const CASES: &[Case] = cases![
    Service:
        fifty_sessions_at_once;
    OwnService:
        a_full_pool_refuses_new_work_only,
        a_capture_that_finds_the_pool_full_harms_nobody,
        whoever_fills_the_pool_stands_still,
        too_many_logins_wait_or_are_told;
];

fn fifty_sessions_at_once(context: &Context) -> Result<()> {
    let remote = context.remote("session")?;
    let all: Vec<Running> = (0..50)
        .map(|number| remote.ssh(&[]).arg(format!("echo {number}; exit {number}")).limit(3 * MINUTE).start())
        .collect::<Result<_>>()?;
    for (number, one) in all.into_iter().enumerate() {
        let out = one.wait()?.expect(i32::try_from(number)?)?;
        ensure!(out.line() == number.to_string(), "{}", out.report());
    }
    Ok(())
}

fn a_full_pool_refuses_new_work_only(context: &Context) -> Result<()> {
    let settings = Settings::default().set("host.pool_size", "4G").set("host.pool_reserve", "1G");
    context.with_service(&settings, |service| {
        let account = service.account(context.scratch())?;
        account.verb("new main --memory 256M")?.ok()?;
        let main = account.at("main");
        let boot = boot_id(&main)?;
        let before = account.verb("ls --json")?.ok()?.json()?;
        // Somebody else fills the pool, to well under the reserve.
        let filler = mount_point(&service.data())?.join("filler");
        let free = service.status()?.pool_free.bytes();
        let much = free.saturating_sub(600 << 20).to_string();
        Run::new("fallocate").args(["-l", &much]).arg(&filler).ok()?;

        let refused = account.verb("new more --memory 256M")?.expect(6)?;
        ensure!(refused.errors().contains("berth: "), "{}", refused.report());
        let after = account.verb("ls --json")?.ok()?.json()?;
        ensure!(after.as_array().map(Vec::len) == before.as_array().map(Vec::len), "half-made: {after}");
        let write = "dd if=/dev/zero of=data bs=1M count=96 conv=fsync 2>/dev/null";
        main.ssh(&[]).arg(write).limit(5 * MINUTE).ok().context("a running machine writes")?;
        ensure!(boot_id(&main)? == boot, "it was booted again");
        fs::remove_file(filler)?;
        account.verb("new more --memory 256M")?.ok().context("after there is room again")?;
        Ok(())
    })
}

/// Without a reserve, so that a capture is let in and meets the end of the pool
/// half-way.
fn a_capture_that_finds_the_pool_full_harms_nobody(context: &Context) -> Result<()> {
    let none: Vec<&str> = Vec::new();
    let settings = Settings::default()
        .set("host.pool_size", "2G")
        .set("host.pool_reserve", 0)
        // Booted, so that its memory is its own and needs no room any more.
        .set("idle.ready", none);
    context.with_service(&settings, |service| {
        let account = service.account(context.scratch())?;
        account.verb("new dev --memory 256M")?.ok()?;
        let dev = account.at("dev");
        dev.exec("echo kept > note && sync && (nohup sleep 5000 > /dev/null 2>&1 < /dev/null &)")?;
        let (boot, sleeper) = (boot_id(&dev)?, dev.line("pgrep -x sleep")?);
        let fillers = fill(&mount_point(&service.data())?)?;
        for words in ["snapshot dev point", "fork dev child", "sleep dev"] {
            let refused = account.verb(words)?.expect(6)?;
            ensure!(refused.errors().contains("storage is full"), "{words}: {}", refused.report());
            ensure!(boot_id(&dev)? == boot, "{words}: it was booted again");
            ensure!(
                dev.line("pgrep -x sleep; cat note")? == format!("{sleeper}\nkept"),
                "{words}: not as before"
            );
        }
        for filler in fillers {
            fs::remove_file(filler)?;
        }
        account.verb("snapshot dev point")?.ok().context("after there is room again")?;
        account.verb("restore dev point")?.ok()?;
        ensure!(
            dev.line("pgrep -x sleep; cat note")? == format!("{sleeper}\nkept"),
            "the point is not whole"
        );
        let points = account.verb("snapshots dev --json")?.ok()?.json()?;
        ensure!(points.as_array().map(Vec::len) == Some(2), "half-made: {points}");
        Ok(())
    })
}

fn whoever_fills_the_pool_stands_still(context: &Context) -> Result<()> {
    let settings = Settings::default().set("host.pool_size", "4G").set("host.pool_reserve", "1G");
    context.with_service(&settings, |service| {
        let account = service.account(context.scratch())?;
        account.verb("new greedy --memory 256M")?.ok()?;
        account.verb("new other --memory 256M")?.ok()?;
        let (greedy, other) = (account.at("greedy"), account.at("other"));
        let boots = (boot_id(&greedy)?, boot_id(&other)?);
        let filler = mount_point(&service.data())?.join("filler");
        let much = service.status()?.pool_free.bytes().saturating_sub(400 << 20).to_string();
        Run::new("fallocate").args(["-l", &much]).arg(&filler).ok()?;

        let writing = greedy
            .ssh(&[])
            .arg("dd if=/dev/zero of=data bs=1M count=600 conv=fsync 2>/dev/null && echo written")
            .limit(15 * MINUTE)
            .start()?;
        eventually("the one that fills the pool to be held", 5 * MINUTE, || {
            let info = account.verb("info greedy --json")?.ok()?.json()?;
            let reason =
                info.pointer("/failure/reason").and_then(|reason| reason.as_str()).unwrap_or_default();
            Ok(info.get("state").is_some_and(|state| state == "paused") && reason.contains("nearly full"))
        })?;
        for refused in [greedy.run("true")?, account.verb("sleep greedy")?] {
            let refused = refused.expect(6)?;
            ensure!(refused.errors().contains("storage is full"), "{}", refused.report());
        }
        ensure!(boot_id(&other)? == boots.1, "the other one was harmed");
        other.exec("echo fine > note && sync").context("the other one writes")?;

        fs::remove_file(filler)?;
        let written = writing.wait()?.ok()?;
        ensure!(written.line() == "written", "{}", written.report());
        ensure!(boot_id(&greedy)? == boots.0, "it was booted again");
        let info = account.verb("info greedy --json")?.ok()?.json()?;
        ensure!(info.get("failure").is_none_or(serde_json::Value::is_null), "it is still blamed: {info}");
        Ok(())
    })
}

/// Takes every block that a filesystem has left, in ever smaller pieces.
fn fill(filesystem: &Path) -> Result<Vec<PathBuf>> {
    let mut fillers = Vec::new();
    let mut piece: u64 = 1 << 30;
    while piece >= 4096 {
        let filler = filesystem.join(format!("filler-{}", fillers.len()));
        let taken = Run::new("fallocate").args(["-l", &piece.to_string()]).arg(&filler).finish()?;
        if taken.status != 0 {
            piece /= 2;
        }
        fillers.push(filler);
    }
    fillers.retain(|filler| filler.exists());
    Ok(fillers)
}

/// The pool's own filesystem, wherever in the data directory it is mounted.
fn mount_point(data: &Path) -> Result<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mut points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    Ok(points.rfind(|point| point.starts_with(data)).unwrap_or_else(|| data.to_owned()))
}

fn too_many_logins_wait_or_are_told(context: &Context) -> Result<()> {
    let settings =
        Settings::default().set("gateway.unauthenticated_per_address", 4).set("gateway.login_grace", "20s");
    context.with_service(&settings, |service| {
        let account = service.account(context.scratch())?;
        account.verb("whoami")?.ok()?;
        // They hold every place and never log in.
        let idle: Vec<TcpStream> =
            (0..4).map(|_| TcpStream::connect(service.endpoint().address)).collect::<Result<_, _>>()?;
        let out = account.client("ssh").args(["-o", "LogLevel=INFO", "berth", "whoami"]).finish()?;
        let told = out.errors().contains("too many");
        ensure!(out.status == 0 || told, "neither waited nor told: {}", out.report());
        drop(idle);
        account.verb("whoami")?.ok()?;
        Ok(())
    })
}
