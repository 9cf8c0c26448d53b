//! `version`.

use super::{Answer, Context, Help, args};
use berth_types::Refusal;
use clap::Parser;
use serde_json::json;

pub const HELP: Help = Help {
    verb: "version",
    usage: "version",
    summary: "the version of this service",
    examples: &["{ssh} {host} version"],
    notes: "",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {}

pub fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let Raw {} = args::parse(&HELP, words, context.address)?;
    let version = env!("CARGO_PKG_VERSION");
    Answer::new(format!("berth {version}\n"), &json!({ "version": version }))
}
