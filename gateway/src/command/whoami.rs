//! `whoami`: who you are here, and how much of your share you use.

use super::{Answer, Context, Help, args, unexpected};
use crate::ui::Table;
use berth_api::{Reply, Request};
use berth_types::Refusal;

pub const HELP: Help = Help {
    verb: "whoami",
    usage: "whoami",
    summary: "who you are here, what you use and what you may use",
    examples: &["{ssh} {host} whoami"],
    notes: "",
};

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    args::nothing(&HELP, words, context.address)?;
    let Reply::Identity(identity) = context.call(Request::Whoami).await? else { return Err(unexpected()) };
    let (usage, quota) = (&identity.usage, &identity.quota);
    let mut table = Table::default();
    table.pair("user", identity.user.as_str());
    if !identity.label.is_empty() {
        table.pair("label", identity.label.as_str());
    }
    table.pair("since", identity.created.to_string());
    table.pair("keys", identity.keys.to_string());
    table.pair("machines", format!("{} of {}", usage.machines, quota.machines));
    table.pair("memory", format!("{} of {} in machines that are up", usage.memory, quota.memory));
    table.pair("disk", format!("{} of {}", usage.disk, quota.disk));
    Answer::new(table.render(context.colour), &identity)
}
