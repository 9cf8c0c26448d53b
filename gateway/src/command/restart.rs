//! `restart NAME`: down and up again.

use super::{Answer, Context, Help, args, unexpected};
use berth_api::{Reply, Request};
use berth_types::Refusal;

pub const HELP: Help = Help {
    verb: "restart",
    usage: "restart NAME",
    summary: "stop and start a machine",
    examples: &["{ssh} {host} restart dev"],
    notes: "",
};

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let name = args::only_name(&HELP, words, context.address)?;
    let text = format!("{name} is running again\n");
    match context.call(Request::Restart { name }).await? {
        Reply::Machine(machine) => Answer::new(text, &machine),
        _ => Err(unexpected()),
    }
}
