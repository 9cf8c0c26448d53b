//! `sleep NAME`.

use super::{Answer, Context, Help, args, name, unexpected};
use berth_api::{Reply, Request};
use berth_types::Refusal;
use clap::Parser;

pub const HELP: Help = Help {
    verb: "sleep",
    usage: "sleep NAME",
    summary: "memory to disk, no process left; any connection wakes it",
    examples: &["{ssh} {host} sleep dev"],
    notes: "It costs nothing but disk while it sleeps.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    name: String,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let name = name(&raw.name)?;
    match context.call(Request::Sleep { name }).await? {
        Reply::Machine(machine) => Answer::new(format!("{} is {}\n", machine.name, machine.state), &machine),
        _ => Err(unexpected()),
    }
}
