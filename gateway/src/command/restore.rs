//! `restore NAME LABEL`: back to a point in time.

use super::{Answer, Context, Help, args, name, snapshot, unexpected};
use berth_api::{Reply, Request};
use berth_types::Refusal;
use clap::Parser;

pub const HELP: Help = Help {
    verb: "restore",
    usage: "restore NAME LABEL",
    summary: "put a machine back to a snapshot, or to a sleep of its own",
    examples: &["{ssh} {host} restore dev before", "{ssh} {host} restore dev @1"],
    notes: "What is now is kept first, as @1: 'restore NAME @1' undoes a restore.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    name: String,
    label: String,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let (name, point) = (name(&raw.name)?, snapshot::point(&raw.label)?);
    let undo = format!("{} restore {name} @1", context.address.lobby());
    let text = format!("{name} is back at {point}; to undo: {undo}\n");
    match context.call(Request::Restore { name, point }).await? {
        Reply::Machine(machine) => Answer::new(text, &machine),
        _ => Err(unexpected()),
    }
}
