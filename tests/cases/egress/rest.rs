//! A machine that waits for an answer of the world may rest meanwhile.

use crate::{
    context::{Case, Context},
    faults::state,
};
use anyhow::{Result, ensure};
use berth_tests::eventually;
use std::{fs, time::Duration};

pub const CASES: &[Case] = crate::cases! {
    Service: an_answer_wakes_whoever_waits_for_it;
};

fn an_answer_wakes_whoever_waits_for_it(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let waiter = world.machine("waiter")?;
    waiter.exec("nohup curl -sS http://plain.upstream.example/late > answer 2>&1 < /dev/null &")?;
    eventually("the question to arrive", Duration::from_secs(60), || {
        Ok(world.upstream.file("asked").exists())
    })?;
    world.account.verb("sleep waiter")?.ok()?;
    let now = state(&world.account, "waiter")?;
    ensure!(now == "asleep", "it is {now}");
    fs::write(world.upstream.file("go"), "")?;
    eventually("the answer to wake it", Duration::from_secs(60), || {
        Ok(state(&world.account, "waiter")? == "running")
    })?;
    eventually("the answer", Duration::from_secs(60), || Ok(waiter.line("cat answer")? == "late"))
}
