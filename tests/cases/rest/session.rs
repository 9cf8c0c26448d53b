//! Sessions that are left open while their machine rests.

use super::{becomes, machine};
use crate::{
    cases,
    context::{Case, Context},
    faults::{field, hypervisors},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::Terminal;

pub const CASES: &[Case] = cases![
    Service:
        a_key_press_wakes_the_same_shell,
        an_open_session_does_not_keep_it_awake;
];

/// What the shell calls itself, asked by typing. `word` tells answers apart.
fn shell(terminal: &Terminal, word: &str) -> Result<String> {
    terminal.enter(&format!("echo {word}=$$."))?;
    let start = format!("{word}=");
    let answer = |screen: &str| {
        let found = screen.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix('.'));
        found.filter(|pid| pid.parse::<u32>().is_ok()).map(str::to_owned)
    };
    let screen = terminal.shows("the shell's answer", |screen| answer(screen).is_some())?;
    answer(&screen).context("no answer")
}

fn a_key_press_wakes_the_same_shell(context: &Context) -> Result<()> {
    let (account, service) = (context.account()?, context.service()?);
    let dev = machine(&account, "dev")?;
    let id = field(&account, "dev", "/id")?;
    let terminal = Terminal::open(&dev, "t", &[], "")?;
    let first = shell(&terminal, "first")?;
    terminal.enter("word=kept")?;

    account.verb("sleep dev")?.ok()?;
    ensure!(!hypervisors(service)?.iter().any(|(_, directory)| directory.ends_with(&id)), "it has a process");
    ensure!(shell(&terminal, "second")? == first, "another shell after a sleep");

    account.verb("idle dev --pause 3s --sleep never")?.ok()?;
    becomes(&account, "dev", "paused")?;
    ensure!(shell(&terminal, "third")? == first, "another shell after a pause");
    terminal.enter("echo it is $word")?;
    terminal.shows_line("it is kept")?;
    // Twice: what was kept for the session is kept again.
    account.verb("sleep dev")?.ok()?;
    ensure!(shell(&terminal, "fourth")? == first, "another shell after a second sleep");
    Ok(())
}

fn an_open_session_does_not_keep_it_awake(context: &Context) -> Result<()> {
    let account = context.account()?;
    let dev = machine(&account, "dev")?;
    let terminal = Terminal::open(&dev, "t", &[], "")?;
    let first = shell(&terminal, "first")?;
    account.verb("idle dev --pause 3s --sleep 6s")?.ok()?;
    becomes(&account, "dev", "asleep")?;
    ensure!(shell(&terminal, "second")? == first, "another shell");
    Ok(())
}
