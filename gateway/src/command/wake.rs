//! `wake NAME`: now, or by the clock.

use super::{Answer, Context, Help, args, name, unexpected, when};
use berth_api::{Reply, Request};
use berth_types::{Refusal, Schedule};
use clap::Parser;
use jiff::Timestamp;

pub const HELP: Help = Help {
    verb: "wake",
    usage: "wake NAME [--at TIME] [--every 1h] [--never]",
    summary: "wake a machine now, or by the clock for its cron and timers",
    examples: &[
        "{ssh} {host} wake dev",
        "{ssh} {host} wake dev --at 06:30",
        "{ssh} {host} wake dev --every 1h",
        "{ssh} {host} wake dev --never",
    ],
    notes: "TIME is 06:30 (UTC, the next one) or 2026-12-24T06:30:00Z.\n\
            With --every it wakes again and again; --never ends that.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    name: String,
    #[arg(long, allow_hyphen_values = true)]
    at: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    every: Option<String>,
    #[arg(long)]
    never: bool,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let name = name(&raw.name)?;
    let now = Timestamp::now();
    let at = raw.at.as_deref().map(|text| when::time("at", text, now)).transpose()?;
    let every = raw.every.as_deref().map(|text| when::span("every", text)).transpose()?;
    let request = match (at, every, raw.never) {
        (None, None, false) => Request::Wake { name },
        (None, None, true) => Request::Schedule { name, schedule: None },
        (at, every, false) => {
            let first = at.or_else(|| now.checked_add(every?.duration()).ok()).unwrap_or(now);
            Request::Schedule { name, schedule: Some(Schedule { at: first, every }) }
        }
        (_, _, true) => {
            return Err(args::usage(&HELP, "--never goes alone", context.address));
        }
    };
    match context.call(request).await? {
        Reply::Machine(machine) => {
            let text = match machine.wakes_at {
                Some(at) => format!("{} is {}; it wakes at {at}\n", machine.name, machine.state),
                None => format!("{} is {}\n", machine.name, machine.state),
            };
            Answer::new(text, &machine)
        }
        _ => Err(unexpected()),
    }
}
