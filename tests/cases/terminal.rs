//! Terminals: what a person sees and does.

use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Result, ensure};
use berth_tests::{Remote, Terminal, eventually};
use std::time::Duration;

pub const CASES: &[Case] = cases![
    AnyServer:
        the_window_size_follows,
        keys_interrupt_and_suspend,
        full_screen_programs_work,
        a_command_can_have_a_terminal,
        the_end_is_told_with_its_status,
        closing_the_terminal_hangs_up;
];

const MINUTE: Duration = Duration::from_secs(60);

fn remote(context: &Context) -> Result<Remote> {
    context.remote("session")
}

/// An interactive shell at a prompt that the case knows.
fn shell(remote: &Remote, socket: &str) -> Result<Terminal> {
    let terminal = Terminal::open(remote, socket, &[], "")?;
    // A shell reads what was typed before it was ready, so nothing is lost.
    terminal.enter("PS1='% '; clear; echo rea''dy")?;
    terminal.shows_line("ready")?;
    Ok(terminal)
}

fn the_window_size_follows(context: &Context) -> Result<()> {
    let terminal = shell(&remote(context)?, "size")?;
    terminal.enter("stty size")?;
    terminal.shows_line("24 80")?;
    terminal.resize(100, 30)?;
    terminal.enter("clear; sh -c 'trap \"stty size\" WINCH; stty size; while :; do sleep 0.1; done'")?;
    terminal.shows_line("30 100")?;
    terminal.resize(90, 20)?;
    terminal.shows_line("20 90")?;
    Ok(())
}

fn keys_interrupt_and_suspend(context: &Context) -> Result<()> {
    let terminal = shell(&remote(context)?, "keys")?;
    // Said by the job itself: it is in the foreground by then.
    terminal.enter("sh -c 'echo star\"\"ted; exec sleep 1000'")?;
    terminal.shows_line("started")?;
    terminal.press("C-c")?;
    terminal.enter("echo status-$?")?;
    terminal.shows_line("status-130")?;
    terminal.enter("clear; sh -c 'echo aga\"\"in; exec sleep 1000'")?;
    terminal.shows_line("again")?;
    terminal.press("C-z")?;
    terminal.shows("a stopped job", |screen| screen.contains("Stopped"))?;
    terminal.enter("kill %1; wait; clear; echo '\u{e4}\u{20ac}' | od -An -tx1")?;
    terminal.shows_line("c3 a4 e2 82 ac 0a")?;
    Ok(())
}

fn full_screen_programs_work(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    remote.exec("seq -f 'line %g' 1000 > thousand; rm -f edited")?;
    let terminal = shell(&remote, "full")?;
    terminal.enter("less thousand")?;
    terminal.shows_line("line 23")?;
    terminal.press("G")?;
    let screen = terminal.shows_line("line 1000")?;
    ensure!(!screen.contains("line 23\n"), "the screen was not redrawn:\n{screen}");
    terminal.press("q")?;
    terminal.enter("clear; vi edited")?;
    terminal.shows("an empty file in an editor", |screen| screen.matches("\n~").count() > 15)?;
    terminal.type_text("ihello from a terminal")?;
    terminal.shows("what was typed", |screen| screen.starts_with("hello from a terminal"))?;
    terminal.press("Escape")?;
    terminal.enter(":wq")?;
    eventually("the file to be saved", MINUTE, || {
        Ok(remote.run("cat edited")?.line() == "hello from a terminal")
    })
}

fn a_command_can_have_a_terminal(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let out =
        remote.ssh(&["-tt"]).env("TERM", "vt220").arg("tty; echo $TERM; echo err >&2; exit 6").finish()?;
    let out = out.expect(6)?;
    let lines: Vec<String> = out.text().lines().map(str::to_owned).collect();
    ensure!(lines.first().is_some_and(|tty| tty.starts_with("/dev/pts/")), "{}", out.report());
    ensure!(lines.get(1..) == Some(&["vt220".into(), "err".into()][..]), "{}", out.report());
    ensure!(out.text().contains("\r\n"), "no carriage returns: {}", out.report());
    Ok(())
}

fn the_end_is_told_with_its_status(context: &Context) -> Result<()> {
    let terminal = shell(&remote(context)?, "end")?;
    terminal.enter("exit 5")?;
    terminal.shows_line("[ended with 5]")?;
    let terminal = shell(&remote(context)?, "eof")?;
    terminal.press("C-d")?;
    terminal.shows_line("[ended with 0]")?;
    Ok(())
}

fn closing_the_terminal_hangs_up(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    remote.exec("rm -f hung-up")?;
    let script = "trap 'touch hung-up; exit' HUP; echo waiting; while :; do sleep 0.1; done";
    let terminal = Terminal::open(&remote, "hup", &[], script)?;
    terminal.shows_line("waiting")?;
    drop(terminal);
    eventually("the command to be hung up on", MINUTE, || Ok(remote.run("test -e hung-up")?.status == 0))
}
