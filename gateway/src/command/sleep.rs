//! `sleep NAME`.

use super::{Answer, Context, Help, args, unexpected};
use berth_api::{Reply, Request};
use berth_types::Refusal;

pub const HELP: Help = Help {
    verb: "sleep",
    usage: "sleep NAME",
    summary: "memory to disk, no process left; any connection wakes it",
    examples: &["{ssh} {host} sleep dev"],
    notes: "It costs nothing but disk while it sleeps.",
};

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let name = args::only_name(&HELP, words, context.address)?;
    match context.call(Request::Sleep { name }).await? {
        Reply::Machine(machine) => Answer::new(format!("{} is {}\n", machine.name, machine.state), &machine),
        _ => Err(unexpected()),
    }
}
