//! `rm NAME…`: machines and all that is in them.

use super::{Answer, Context, Help, args, name, unexpected};
use berth_api::{Reply, Request};
use berth_types::{MachineName, Refusal};
use clap::Parser;
use serde_json::json;

pub const HELP: Help = Help {
    verb: "rm",
    usage: "rm NAME…",
    summary: "remove machines and everything in them, for good",
    examples: &["{ssh} {host} rm dev", "{ssh} {host} rm copy-1 copy-2"],
    notes: "If one of the names is wrong, none is removed.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let mut names: Vec<MachineName> = raw.names.iter().map(|text| name(text)).collect::<Result<_, _>>()?;
    names.sort();
    names.dedup();
    match context.call(Request::Remove { names }).await? {
        Reply::Removed(names) => {
            let text = names.iter().map(|name| format!("{name} is removed\n")).collect::<String>();
            Answer::new(text, &json!({ "removed": names }))
        }
        _ => Err(unexpected()),
    }
}
