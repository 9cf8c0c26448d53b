//! `version`.

use super::{Answer, Context, Help, args};
use berth_types::Refusal;
use serde_json::json;

pub const HELP: Help = Help {
    verb: "version",
    usage: "version",
    summary: "the version of this service",
    examples: &["{ssh} {host} version"],
    notes: "",
};

pub fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    args::nothing(&HELP, words, context.address)?;
    let version = env!("CARGO_PKG_VERSION");
    Answer::new(format!("berth {version}\n"), &json!({ "version": version }))
}
