//! `stop NAME`: down, with its files kept.

use super::{Answer, Context, Help, args, unexpected};
use berth_api::{Reply, Request};
use berth_types::Refusal;

pub const HELP: Help = Help {
    verb: "stop",
    usage: "stop NAME",
    summary: "shut a machine down; its files stay, the next connection starts it",
    examples: &["{ssh} {host} stop dev"],
    notes: "",
};

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let name = args::only_name(&HELP, words, context.address)?;
    let text = format!("{name} is stopped\n");
    match context.call(Request::Stop { name }).await? {
        Reply::Machine(machine) => Answer::new(text, &machine),
        _ => Err(unexpected()),
    }
}
