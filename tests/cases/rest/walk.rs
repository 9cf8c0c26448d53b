//! hostd dies at every fault point that it has, and nothing acknowledged is lost.

use super::{machine, settings, sound::sound};
use crate::{
    cases,
    context::{Case, Context},
    faults::MINUTE,
};
use anyhow::{Context as _, Result, bail, ensure};
use berth_hostd::FAULT_POINTS;
use berth_tests::{Account, Service, Settings, eventually};

pub const CASES: &[Case] = cases![
    OwnService:
        hostd_may_die_at_every_fault_point;
];

/// How hostd is led past a point: what comes before, and the verb that meets it.
struct Way {
    before: &'static [&'static str],
    verb: &'static str,
    /// Nobody is kept waiting when it strikes.
    aside: bool,
    /// What is to be removed afterwards, if it came about.
    left: &'static [&'static str],
}

fn way(point: &str) -> Result<Way> {
    let way = |before, verb, left| Way { before, verb, aside: false, left };
    Ok(match point.split_once('.').unwrap_or_default() {
        ("sleep", _) => way(&[], "sleep dev", &[]),
        ("wake", _) => way(&["sleep dev"], "wake dev", &[]),
        ("capture", _) => way(&[], "snapshot dev point", &["snapshot rm dev point"]),
        ("fork", _) => way(&[], "fork dev child", &["rm child"]),
        ("restore", _) => way(&[], "restore dev base", &[]),
        // Nobody asked for one of this size before: one is made ready behind the first.
        ("template", "saved") => Way { aside: true, ..way(&[], "new odd --memory 320M", &["rm odd"]) },
        ("template", _) => Way { aside: true, ..way(&[], "new odd --memory 384M", &["rm odd"]) },
        _ => bail!("this walk does not know the way to {point}"),
    })
}

fn hostd_may_die_at_every_fault_point(context: &Context) -> Result<()> {
    every_fault_point(context, &settings(), |_| Ok(()))
}

/// The walk itself, on machines of 256 MiB, once the service is ready for it.
pub fn every_fault_point(
    context: &Context,
    settings: &Settings,
    ready: impl Fn(&Service) -> Result<()>,
) -> Result<()> {
    context.with_service(settings, |service| {
        let account = service.account(context.scratch())?;
        ready(service)?;
        let dev = machine(&account, "dev")?;
        dev.exec("echo base > note; sync")?;
        account.verb("snapshot dev base")?.ok()?;
        for point in FAULT_POINTS {
            walk(service, &account, point).with_context(|| format!("at {point}"))?;
        }
        Ok(())
    })
}

fn walk(service: &Service, account: &Account, point: &str) -> Result<()> {
    let (dev, way) = (account.at("dev"), way(point)?);
    // What is acknowledged here must be there afterwards.
    dev.exec(&format!("echo {point} > note; sync"))?;
    for words in way.before {
        account.verb(words)?.ok()?;
    }
    service.kill_hostd()?;
    service.start_doomed_hostd(point)?;
    // One of them boots, beside a template that boots.
    let verb = || account.client("ssh").args(["berth", "--", way.verb]).limit(10 * MINUTE);
    let cut_short = verb().start()?;
    eventually("hostd to die", 10 * MINUTE, || Ok(service.hostd_pid().is_err()))?;
    service.start_hostd()?;
    let out = cut_short.wait()?;
    ensure!(out.status != 0 || way.aside, "acknowledged before it was done: {}", out.report());

    let note = dev.line("cat note")?;
    let back = way.verb.starts_with("restore") && note == "base";
    ensure!(note == point || back, "its file says {note:?}");
    for words in way.left {
        let out = account.verb(words)?;
        ensure!([0, 3].contains(&out.status), "{}", out.report());
    }
    sound(service, account)?;
    // The same again, undisturbed.
    for words in way.before {
        account.verb(words)?.ok()?;
    }
    verb().ok()?;
    for words in way.left {
        account.verb(words)?.ok()?;
    }
    Ok(())
}
