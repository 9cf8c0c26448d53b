//! `snapshot NAME [LABEL]` and `snapshot rm NAME LABEL`.

use super::{Answer, Context, Help, args, name, unexpected};
use crate::ui::text::{QUOTED, printable};
use berth_api::{Reply, Request};
use berth_types::{Code, Label, Point, Refusal};
use clap::Parser;
use serde_json::json;

pub const HELP: Help = Help {
    verb: "snapshot",
    usage: "snapshot NAME [LABEL] | snapshot rm NAME LABEL",
    summary: "keep this moment of a machine, memory and disk, under a name",
    examples: &["{ssh} {host} snapshot dev before", "{ssh} {host} snapshot rm dev before"],
    notes: "It goes on running. See them with 'snapshots NAME', go back with 'restore NAME LABEL'.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    name: String,
    label: Option<String>,
}

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct RawRemove {
    name: String,
    label: String,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    // `rm` is a verb, so no machine is called that.
    if let Some(("rm", rest)) = words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return remove(context, rest).await;
    }
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let name = name(&raw.name)?;
    let label = raw.label.as_deref().map(label).transpose()?;
    match context.call(Request::Snapshot { name: name.clone(), label }).await? {
        Reply::Point(point) => {
            let back = format!("{} restore {name} {}", context.address.lobby(), point.point);
            Answer::new(format!("{name} is kept as '{}'\n{back}\n", point.point), &point)
        }
        _ => Err(unexpected()),
    }
}

async fn remove(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: RawRemove = args::parse(&HELP, words, context.address)?;
    let (name, label) = (name(&raw.name)?, label(&raw.label)?);
    let text = format!("{label} of {name} is removed\n");
    let value = json!({ "removed": label, "name": name });
    match context.call(Request::SnapshotRemove { name, label }).await? {
        Reply::Done => Answer::new(text, &value),
        _ => Err(unexpected()),
    }
}

fn label(text: &str) -> Result<Label, Refusal> {
    text.parse().map_err(|error| wrong(text, error))
}

pub fn point(text: &str) -> Result<Point, Refusal> {
    text.parse().map_err(|error| wrong(text, error))
}

fn wrong(text: &str, error: impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::Usage, format!("'{}' is no label", printable(text, QUOTED)), error.to_string())
}
