//! `fork SRC NEW`: a live copy.

use super::{Answer, Context, Help, args, name, new_name, unexpected};
use crate::ui::text::{QUOTED, printable};
use berth_api::{Reply, Request, Resolved};
use berth_types::{Code, MachineName, Refusal};
use clap::Parser;

pub const HELP: Help = Help {
    verb: "fork",
    usage: "fork SRC NEW [-n COUNT] [--no-secrets]",
    summary: "a live copy: memory, disk and running processes",
    examples: &[
        "{ssh} {host} fork dev copy",
        "{ssh} {host} fork dev copy -n 5",
        "{ssh} {host} fork dev",
        "{ssh} {host} fork copy",
    ],
    notes: "The source goes on running. With -n the copies are NEW-1, NEW-2 …, all of one moment.\n\
            With one name: a machine of yours is copied under a made-up name; any other name\n\
            makes a copy of 'main' that is called so. A copy reaches what its source may reach and has\n\
            its secrets; with --no-secrets it has none.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    #[arg(value_name = "SRC")]
    first: String,
    #[arg(value_name = "NEW")]
    second: Option<String>,
    #[arg(short = 'n', long = "count", allow_hyphen_values = true)]
    count: Option<String>,
    #[arg(long)]
    no_secrets: bool,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let count = raw.count.as_deref().map(count).transpose()?;
    let first = name(&raw.first)?;
    let (source, new) = match raw.second.as_deref().map(new_name).transpose()? {
        Some(second) => (Some(first), Some(second)),
        None => one_name(context, first).await?,
    };
    match context.call(Request::Fork { source, new, count, no_secrets: raw.no_secrets }).await? {
        Reply::Machines(machines) => {
            let line = |name: &MachineName| format!("{}\n", context.address.machine(name.as_str()));
            let text: String = machines.iter().map(|machine| line(&machine.name)).collect();
            Answer::new(text, &machines)
        }
        _ => Err(unexpected()),
    }
}

type Names = (Option<MachineName>, Option<MachineName>);

/// A machine of theirs is the source; anything else is a name for a copy of `main`.
async fn one_name(context: &Context<'_>, name: MachineName) -> Result<Names, Refusal> {
    match context.call(Request::Resolve { login: name.to_string() }).await? {
        Reply::Resolved(Resolved::Machine(source)) => Ok((Some(source), None)),
        Reply::Resolved(Resolved::Lobby { .. }) => Ok((None, Some(name.for_new_machine()?))),
        _ => Err(unexpected()),
    }
}

fn count(text: &str) -> Result<u32, Refusal> {
    text.parse().map_err(|_| {
        let message = format!("-n '{}' is no number of machines", printable(text, QUOTED));
        Refusal::new(Code::Usage, message, "try -n 5")
    })
}
