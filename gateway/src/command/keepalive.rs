//! `keepalive NAME 2h`: stay awake.

use super::{Answer, Context, Help, args, name, unexpected, when};
use berth_api::{Reply, Request};
use berth_types::Refusal;
use clap::Parser;

pub const HELP: Help = Help {
    verb: "keepalive",
    usage: "keepalive NAME 2h|off",
    summary: "keep a machine awake for a while, whatever it does",
    examples: &["{ssh} {host} keepalive dev 2h", "{ssh} {host} keepalive dev off"],
    notes: "",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    name: String,
    #[arg(value_name = "DURATION")]
    duration: String,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let name = name(&raw.name)?;
    let span = match raw.duration.as_str() {
        "off" => None,
        text => Some(when::span("keepalive NAME", text)?),
    };
    match context.call(Request::Keepalive { name, span }).await? {
        Reply::Why(why) => Answer::new(format!("{}\n", why.reason), &why),
        _ => Err(unexpected()),
    }
}
