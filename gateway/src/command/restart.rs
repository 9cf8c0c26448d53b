//! `restart NAME`: down and up again.

use super::{Answer, Context, Help, args, name, unexpected};
use berth_api::{Reply, Request};
use berth_types::Refusal;
use clap::Parser;

pub const HELP: Help = Help {
    verb: "restart",
    usage: "restart NAME",
    summary: "stop and start a machine",
    examples: &["{ssh} {host} restart dev"],
    notes: "",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    name: String,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let name = name(&raw.name)?;
    let text = format!("{name} is running again\n");
    match context.call(Request::Restart { name }).await? {
        Reply::Machine(machine) => Answer::new(text, &machine),
        _ => Err(unexpected()),
    }
}
