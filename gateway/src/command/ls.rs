//! `ls`: what you have.

use super::{Answer, Context, Help, args, unexpected};
use crate::ui::{Style, Table};
use berth_api::{MachineView, Reply, Request};
use berth_types::{Refusal, Span, State};
use jiff::Timestamp;
use std::time::Duration;

pub const HELP: Help = Help {
    verb: "ls",
    usage: "ls",
    summary: "your machines",
    examples: &["{ssh} {host} ls", "{ssh} {host} ls --json"],
    notes: "",
};

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    args::nothing(&HELP, words, context.address)?;
    match context.call(Request::List).await? {
        Reply::Machines(machines) if machines.is_empty() => {
            let text = format!("no machines yet; make one: {} new dev\n", context.address.lobby());
            Answer::new(text, &machines)
        }
        Reply::Machines(machines) => {
            Answer::new(table(&machines, Timestamp::now()).render(context.colour), &machines)
        }
        _ => Err(unexpected()),
    }
}

fn table(machines: &[MachineView], now: Timestamp) -> Table {
    let mut table = Table::with_header(&["NAME", "STATE", "CPUS", "MEMORY", "DISK", "AGE", "USED", ""]);
    for machine in machines {
        let plain = |text: String| (text, Style::Plain);
        let mut notes: Vec<String> = machine.failure.iter().map(|failure| failure.reason.clone()).collect();
        notes.extend(machine.expires.map(|at| format!("removes itself in {}", since(now, at))));
        table.row([
            plain(machine.name.to_string()),
            (machine.state.to_string(), style(machine.state)),
            plain(machine.cpus.to_string()),
            plain(machine.memory.to_string()),
            plain(machine.disk.to_string()),
            plain(since(machine.created, now)),
            plain(format!("{} ago", since(machine.last_used, now))),
            (notes.join("; "), Style::Bad),
        ]);
    }
    table
}

pub const fn style(state: State) -> Style {
    match state {
        State::Running => Style::Good,
        State::Failed => Style::Bad,
        State::Paused | State::Asleep => Style::Faint,
        State::Stopped | State::Starting | State::Suspending | State::Stopping | State::Removing => {
            Style::Plain
        }
    }
}

/// `3d4h`; never `12ms`, which nobody wants to read.
pub fn since(then: Timestamp, now: Timestamp) -> String {
    let seconds = u64::try_from(now.duration_since(then).as_secs()).unwrap_or(0);
    span(Duration::from_secs(seconds))
}

pub fn span(duration: Duration) -> String {
    match duration.as_secs() {
        0 => "0s".to_owned(),
        seconds => Span::seconds(seconds).to_string(),
    }
}
