//! What cannot be done is refused in one line, and nothing is half-made.

use super::{machine, machines};
use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Result, ensure};

pub const CASES: &[Case] = cases![
    Service:
        every_mistake_is_told_in_one_line;
];

const MISTAKES: &[(&str, i32)] = &[
    // Forks.
    ("fork dev other", 5),
    ("fork dev dev", 5),
    ("fork nobody child", 3),
    ("fork dev child -n 0", 2),
    ("fork dev child -n -1", 2),
    ("fork dev child -n 10000", 2),
    ("fork dev child -n many", 2),
    ("fork dev child -n 99", 6),
    ("fork dev BAD", 2),
    ("fork dev ls", 2),
    ("fork", 2),
    ("fork dev a b", 2),
    // Points in time.
    ("snapshot nobody", 3),
    ("snapshot dev taken", 5),
    ("snapshot dev ../up", 2),
    ("snapshot dev @1", 2),
    ("snapshot", 2),
    ("snapshot rm dev", 2),
    ("snapshot rm dev none", 3),
    ("snapshot rm nobody none", 3),
    ("snapshots nobody", 3),
    ("restore dev none", 3),
    ("restore dev @9", 3),
    ("restore dev @0", 2),
    ("restore dev @-1", 2),
    ("restore nobody taken", 3),
    ("restore dev", 2),
    ("new child --from dev/none", 3),
    ("new child --from nobody/taken", 3),
    ("new child --from dev", 2),
    ("new child --from dev/taken --memory 1G", 2),
    ("new other --from dev/taken", 5),
    // Rest.
    ("sleep nobody", 3),
    ("sleep stopped", 5),
    ("sleep", 2),
    ("wake nobody", 3),
    ("wake dev --at garbage", 2),
    ("wake dev --at 2020-01-01T00:00:00Z", 2),
    ("wake dev --at 25:00", 2),
    ("wake dev --every often", 2),
    ("wake dev --every 0s", 2),
    ("wake dev --every -5m", 2),
    ("wake dev --never --every 5m", 2),
    ("idle nobody --pause 3s", 3),
    ("idle dev --pause soon", 2),
    ("idle dev --pause -3s", 2),
    ("idle dev --sleep 99999999999999999999h", 2),
    ("idle dev --default --pause 3s", 2),
    ("keepalive dev", 2),
    ("keepalive dev forever", 2),
    ("keepalive nobody 2h", 3),
    ("why nobody", 3),
    ("why", 2),
    ("new child --ttl soon", 2),
    ("new child --ttl -5s", 2),
];

fn every_mistake_is_told_in_one_line(context: &Context) -> Result<()> {
    let account = context.account()?;
    let dev = machine(&account, "dev")?;
    machine(&account, "other")?;
    machine(&account, "stopped")?;
    account.verb("stop stopped")?.ok()?;
    account.verb("snapshot dev taken")?.ok()?;
    // Whatever is left of a mistake shows in the states: nothing else may change them.
    for name in ["dev", "other"] {
        account.verb(&format!("idle {name} --pause never --sleep never"))?.ok()?;
    }
    let boot = crate::faults::boot_id(&dev)?;
    let before = machines(&account)?;
    let mut wrong = Vec::new();
    for (words, status) in MISTAKES {
        let out = account.verb(words)?;
        let errors = out.errors();
        let told: Vec<&str> = errors.lines().filter(|line| line.starts_with("berth: ")).collect();
        // `berth: what went wrong: what to do`
        let fits = matches!(told[..], [line] if line.matches(": ").count() >= 2);
        if out.status != *status || !fits || !out.stdout.is_empty() {
            wrong.push(format!("{words} should end with {status}: {}", out.report()));
        }
        let now = machines(&account)?;
        if now != before {
            wrong.push(format!("{words} left {now:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(crate::faults::boot_id(&dev)? == boot, "it was booted again");
    Ok(())
}
