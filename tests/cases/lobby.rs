//! The address itself: what a login name and a word mean.

use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Result, ensure};
use berth_tests::Terminal;

pub const CASES: &[Case] = cases![
    Service:
        the_first_connect_makes_main,
        a_word_that_is_no_verb_is_explained,
        a_mistyped_name_is_pointed_out,
        a_machine_takes_every_word,
        files_sent_to_the_address_reach_main;
];

fn the_first_connect_makes_main(context: &Context) -> Result<()> {
    let account = context.account()?;
    let terminal = Terminal::open(&account.at("somebody"), "first", &[], "")?;
    terminal.enter("echo $USER at $(hostname)")?;
    terminal.shows_line("dev at main")?;
    terminal.enter("echo kept > note; exit")?;
    terminal.shows_line("[ended with 0]")?;
    ensure!(account.at("main").line("cat note")? == "kept", "the note is not in main");
    let machines = account.verb("ls --json")?.ok()?.json()?;
    ensure!(machines.as_array().is_some_and(|all| all.len() == 1), "{machines}");
    Ok(())
}

fn a_word_that_is_no_verb_is_explained(context: &Context) -> Result<()> {
    let account = context.account()?;
    let port = account.endpoint().address.port();
    let out = account.verb("echo hi > note")?.expect(2)?;
    let hint = format!("ssh -p {port} main@localhost 'echo hi > note'");
    let errors = out.errors();
    ensure!(
        errors.lines().any(|line| line.starts_with("berth: ") && line.contains(&hint)),
        "{}",
        out.report()
    );
    ensure!(out.stdout.is_empty(), "{}", out.report());
    let json = account.verb("echo hi --json")?;
    ensure!(json.status == 2, "{}", json.report());
    Ok(())
}

fn a_mistyped_name_is_pointed_out(context: &Context) -> Result<()> {
    let account = context.account()?;
    account.verb("new website --memory 256M")?.ok()?;
    let out = account.at("websit").ssh(&[]).input("hostname\nexit\n")?.finish()?;
    ensure!(out.status == 0 && out.line().ends_with("main"), "{}", out.report());
    ensure!(out.errors().contains("website"), "no hint: {}", out.report());
    let usual = account.at("alice").ssh(&[]).input("exit\n")?.ok()?;
    ensure!(!usual.errors().contains("website"), "a hint nobody needs: {}", usual.report());
    Ok(())
}

fn a_machine_takes_every_word(context: &Context) -> Result<()> {
    let remote = context.remote("session")?;
    let out = remote.exec("touch a-file; ls -d a-file")?;
    ensure!(out.line() == "a-file", "{}", out.report());
    let version = remote.run("version")?.expect(127)?;
    ensure!(version.errors().contains("version"), "{}", version.report());
    Ok(())
}

fn files_sent_to_the_address_reach_main(context: &Context) -> Result<()> {
    let remote = context.remote("files")?;
    let local = context.scratch().directory("lobby")?;
    std::fs::write(local.join("sent"), "to the lobby")?;
    let account = remote.account();
    account.client("scp").arg("sent").arg("berth:new-way").directory(&local).ok()?;
    account.client("scp").arg("-O").arg("sent").arg("berth:old-way").directory(&local).ok()?;
    remote.rsync(&["-a", "sent", "berth:by-rsync"]).directory(&local).ok()?;
    let there = remote.line("cat new-way old-way by-rsync")?;
    ensure!(there == "to the lobby".repeat(3), "{there}");
    Ok(())
}
