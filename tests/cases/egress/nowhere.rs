//! A value that is in use is nowhere that a machine could have it.

use super::{fresh_value, welcomed};
use crate::{
    context::{Case, Context},
    verbs::json,
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Run, eventually};
use std::{path::Path, time::Duration};

pub const CASES: &[Case] = crate::cases! {
    Service: a_value_in_use_is_nowhere;
};

fn a_value_in_use_is_nowhere(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let user = world.machine("user")?;
    let value = fresh_value("sk-nowhere")?;
    world.set(
        "NOWHERE --to nowhere.upstream.example --placeholder --header Authorization: Bearer {}",
        &value,
    )?;
    world.expect("nowhere", &format!("Bearer {value}"))?;
    welcomed(&user, "https://nowhere.upstream.example/nowhere")?;
    let using = "while :; do curl -sS -o out https://nowhere.upstream.example/nowhere && cat out >> welcomes; \
                 curl -sS https://nowhere.upstream.example/echo >> echoes; sleep 0.05; done";
    user.exec(&format!("nohup sh -c '{using}' > /dev/null 2>&1 < /dev/null &"))?;
    eventually("the machine to use it again and again", Duration::from_secs(120), || {
        Ok(user.line("cat welcomes 2>/dev/null | wc -l")?.parse::<u32>()? >= 3)
    })?;
    // 1. In the machine: environment, processes, and whatever it wrote down.
    let seen = user.line(
        "sudo sh -c 'cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null' | tr '\\0' '\\n'; cat echoes",
    )?;
    ensure!(
        seen.contains("berth_secret_"),
        "the placeholder is not there: the search looks at the wrong place"
    );
    ensure!(!seen.contains(&value), "the value is in the machine");
    // 2. In its memory and its disk, while it is used.
    let id = json(&world.account, "info user")?;
    let id = id.get("id").and_then(|id| id.as_str()).context("no id")?.to_owned();
    let pool = world.service.data().join("pool");
    let directory = pool.join("machines").join(&id);
    ensure!(found("berth_secret_", &directory.join("ram"))?, "not even the placeholder is in its memory");
    for file in ["ram", "disk"] {
        ensure!(!found(&value, &directory.join(file))?, "the value is in its {file}");
    }
    // 3. And in its saved state, when it sleeps.
    world.account.verb("sleep user")?.ok()?;
    let generations =
        Run::new("grep").args(["-rlaF", "--", &value]).arg(pool.join("generations")).finish()?;
    ensure!(generations.status == 1, "the value is in {}", generations.text());
    let states = Run::new("find").arg(pool.join("generations")).args(["-name", "state"]).ok()?;
    ensure!(!states.line().is_empty(), "no state was saved: the search looks at the wrong place");
    // 4. In nothing that the daemons write: logs, the store, the audit log, their arguments.
    for place in [
        world.service.directory().join("berth-hostd.log"),
        world.service.directory().join("berth-gateway.log"),
    ] {
        ensure!(!found(&value, &place)?, "the value is in {}", place.display());
    }
    for place in ["store", "secrets", "audit", "policies", "users"] {
        let files =
            Run::new("grep").args(["-rlaF", "--", &value]).arg(world.service.data().join(place)).finish()?;
        ensure!(files.status == 1, "the value is in {}", files.text());
    }
    let arguments =
        Run::new("sh").args(["-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"]).finish()?;
    let shown = arguments.text().lines().filter(|line| line.contains(&value)).count();
    ensure!(shown == 0, "the value is in the arguments of a process");
    Ok(())
}

fn found(text: &str, file: &Path) -> Result<bool> {
    let grep = Run::new("grep").args(["-qaF", "--", text]).arg(file).finish()?;
    ensure!(grep.status < 2, "cannot search: {}", grep.report());
    Ok(grep.status == 0)
}
