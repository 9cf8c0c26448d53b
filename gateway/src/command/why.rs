//! `why NAME`.

use super::{Answer, Context, Help, args, name, unexpected};
use berth_api::{Reply, Request};
use berth_types::Refusal;
use clap::Parser;

pub const HELP: Help = Help {
    verb: "why",
    usage: "why NAME",
    summary: "why it is awake or asleep now, with the numbers",
    examples: &["{ssh} {host} why dev"],
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
    match context.call(Request::Why { name }).await? {
        Reply::Why(why) => Answer::new(format!("{}\n", why.reason), &why),
        _ => Err(unexpected()),
    }
}
