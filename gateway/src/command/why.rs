//! `why NAME`.

use super::{Answer, Context, Help, args, unexpected};
use berth_api::{Reply, Request};
use berth_types::Refusal;

pub const HELP: Help = Help {
    verb: "why",
    usage: "why NAME",
    summary: "why it is awake or asleep now, with the numbers",
    examples: &["{ssh} {host} why dev"],
    notes: "",
};

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let name = args::only_name(&HELP, words, context.address)?;
    match context.call(Request::Why { name }).await? {
        Reply::Why(why) => Answer::new(format!("{}\n", why.reason), &why),
        _ => Err(unexpected()),
    }
}
