//! `rename OLD NEW`.

use super::{Answer, Context, Help, args, name, new_name, unexpected};
use berth_api::{Reply, Request};
use berth_types::Refusal;
use clap::Parser;

pub const HELP: Help = Help {
    verb: "rename",
    usage: "rename OLD NEW",
    summary: "give a machine another name",
    examples: &["{ssh} {host} rename dev work"],
    notes: "",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    old: String,
    new: String,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let (old, new) = (name(&raw.old)?, new_name(&raw.new)?);
    let text = format!("{old} is now {new}\n");
    match context.call(Request::Rename { old, new }).await? {
        Reply::Machine(machine) => Answer::new(text, &machine),
        _ => Err(unexpected()),
    }
}
