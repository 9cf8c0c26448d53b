//! `info NAME`: everything about one machine, or the end of its console.

use super::{Answer, Context, Help, args, ls, name, unexpected};
use crate::ui::Table;
use berth_api::{MachineView, Reply, Request};
use berth_types::Refusal;
use clap::Parser;
use jiff::Timestamp;
use serde_json::json;
use std::time::Duration;

pub const HELP: Help = Help {
    verb: "info",
    usage: "info NAME [--console]",
    summary: "all about a machine, or what its console said last",
    examples: &["{ssh} {host} info main", "{ssh} {host} info main --console"],
    notes: "",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    name: String,
    #[arg(long)]
    console: bool,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let name = name(&raw.name)?;
    if raw.console {
        return match context.call(Request::Console { name: name.clone() }).await? {
            Reply::Console(console) => {
                Answer::new(tame(&console), &json!({ "name": name, "console": console }))
            }
            _ => Err(unexpected()),
        };
    }
    match context.call(Request::Info { name }).await? {
        Reply::Machine(machine) => {
            Answer::new(table(&machine, Timestamp::now()).render(context.colour), &machine)
        }
        _ => Err(unexpected()),
    }
}

fn table(machine: &MachineView, now: Timestamp) -> Table {
    let mut table = Table::default();
    table.pair("name", machine.name.as_str());
    table.pair("id", machine.id.as_str());
    table.row([
        ("state".to_owned(), crate::ui::Style::Faint),
        (machine.state.to_string(), ls::style(machine.state)),
    ]);
    if let Some(failure) = &machine.failure {
        table.pair("failure", format!("{} ({} ago)", failure.reason, ls::since(failure.at, now)));
    }
    table.pair("image", machine.image.as_str());
    table.pair("cpus", machine.cpus.to_string());
    table.pair("memory", machine.memory.to_string());
    table.pair(
        "disk",
        match machine.disk_used {
            Some(used) => format!("{}, {used} used", machine.disk),
            None => machine.disk.to_string(),
        },
    );
    if let Some(used) = machine.pool_used {
        table.pair("occupies", format!("{used}, with its memory and points in time"));
    }
    for (key, value) in &machine.labels {
        table.pair("label", format!("{key}={value}"));
    }
    table.pair("created", format!("{} ({} ago)", machine.created, ls::since(machine.created, now)));
    table.pair("last used", format!("{} ago", ls::since(machine.last_used, now)));
    if let Some(up) = machine.up_ms {
        table.pair("up", ls::span(Duration::from_millis(up)));
    }
    if let Some(parent) = &machine.parent {
        table.pair("forked from", parent.as_str());
    }
    if let Some(at) = machine.expires {
        table.pair("removes itself", format!("in {}", ls::since(now, at)));
    }
    if let Some(until) = machine.keepalive_until.filter(|until| *until > now) {
        table.pair("kept awake", format!("until {until}"));
    }
    if let Some(at) = machine.wakes_at {
        table.pair("wakes", at.to_string());
    }
    table.pair("address", machine.network.address.as_str());
    table.pair("reaches", machine.network.egress.as_str());
    table
}

/// A console is written by the machine: its lines may stay, its escapes not.
fn tame(console: &str) -> String {
    let mut text = crate::ui::text::plain_lines(console);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_console_cannot_drive_the_terminal() {
        assert_eq!(super::tame("boot\r\n\u{1b}[2Jok\u{202e}\u{200b}"), "boot\n[2Jok\n");
    }
}
