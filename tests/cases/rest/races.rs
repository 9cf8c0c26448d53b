//! Verbs at the same time: each ends, and none leaves a half-made machine.

use super::{machine, machines, settings, sound::sound};
use crate::{
    cases,
    context::{Case, Context},
    faults::MINUTE,
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Output, Running};

pub const CASES: &[Case] = cases![
    OwnService:
        verbs_at_the_same_time_all_end;
];

/// What runs at once. Each line is started while the one before it is under way.
const RACES: &[&[&str]] = &[
    &["snapshot dev one", "snapshot dev one", "snapshot dev two"],
    &["fork dev child", "sleep dev"],
    &["sleep dev", "wake dev", "sleep dev", "wake dev"],
    &["sleep dev", "fork dev other", "snapshot dev three"],
    &["restore dev one", "snapshot dev four", "sleep dev"],
    &["restore dev one", "restore dev two"],
    &["snapshot rm dev one", "restore dev one", "new from-one --from dev/one"],
    &["fork dev same", "fork dev same", "new same"],
    &["stop dev", "sleep dev", "wake dev"],
    &["rename dev moved", "sleep dev", "rename moved dev"],
    &["restore child @1", "rm child"],
    &["fork other twin", "rm other", "wake other"],
];

fn start(account: &Account, words: &str) -> Result<Running> {
    account.client("ssh").args(["berth", "--", words]).limit(2 * MINUTE).start()
}

/// Done, not there (any more), or refused because of the other one.
fn told(out: &Output) -> Result<()> {
    ensure!([0, 3, 5].contains(&out.status), "{}", out.report());
    ensure!(out.status == 0 || out.errors().contains("berth: "), "no reason: {}", out.report());
    Ok(())
}

fn verbs_at_the_same_time_all_end(context: &Context) -> Result<()> {
    context.with_service(&settings(), |service| {
        let account = service.account(context.scratch())?;
        let dev = machine(&account, "dev")?;
        dev.exec("echo kept > note; sync")?;
        for race in RACES {
            let all: Vec<Running> = race.iter().map(|words| start(&account, words)).collect::<Result<_>>()?;
            let mut done = 0;
            for one in all {
                let out = one.wait().with_context(|| format!("{race:?}"))?;
                told(&out).with_context(|| format!("{race:?}"))?;
                done += usize::from(out.status == 0);
            }
            ensure!(done > 0, "nobody got through: {race:?}");
            // A rename may have been the last or the first.
            account.verb("rename moved dev")?;
            sound(service, &account).with_context(|| format!("after {race:?}"))?;
            ensure!(dev.line("cat note")? == "kept", "after {race:?}");
        }
        // Whatever became of them: everything that is listed can be used.
        for (name, _) in machines(&account)? {
            // `same` is a copy or new, by who came first.
            let note = account.at(&name).line("hostname; cat note 2>/dev/null || echo kept")?;
            ensure!(note == format!("{name}\nkept"), "{name}: {note}");
        }
        Ok(())
    })
}
