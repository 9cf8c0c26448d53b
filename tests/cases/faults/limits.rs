//! Too much of something: space, logins, sessions.

use super::{MINUTE, boot_id};
use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Run, Running, Settings};
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
        main.exec("head -c 100000000 /dev/urandom > data && sync").context("a running machine writes")?;
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
        dev.exec("echo kept > note; sync; nohup sleep 5000 > /dev/null 2>&1 < /dev/null &")?;
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
        Settings::default().set("gateway.unauthenticated_per_address", 4).set("gateway.login_grace", "5s");
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
