//! `key add|ls|rm`: the keys that are you.

use super::{Answer, Context, Help, args, unexpected};
use crate::{
    ssh::auth,
    ui::{Style, Table},
};
use berth_api::{Reply, Request};
use berth_types::{Code, Refusal};
use clap::{Parser, Subcommand};

pub const HELP: Help = Help {
    verb: "key",
    usage: "key add [KEY] | key ls | key rm FINGERPRINT",
    summary: "the keys that may log in as you",
    examples: &[
        "{ssh} {host} key add < ~/.ssh/id_ed25519.pub",
        "{ssh} {host} key ls",
        "{ssh} {host} key rm SHA256:GtNvHk2mF8bq",
    ],
    notes: "'key add' takes a public key as words or on standard input.\n\
            'key rm' takes a fingerprint or the start of one; your last key stays.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
#[command(disable_help_subcommand = true)]
struct Raw {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
#[command(disable_help_flag = true)]
enum Action {
    Add { key: Vec<String> },
    Ls,
    Rm { fingerprint: String },
}

pub fn wants_input(words: &[String]) -> bool {
    matches!(words, [verb, action] if verb == HELP.verb && action == "add")
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let usage = |message: &str| args::usage(&HELP, message, context.address);
    let raw = Raw::try_parse_from(words).map_err(|_| usage("these words do not fit"))?;
    match raw.action.ok_or_else(|| usage("say what to do with keys"))? {
        Action::Add { key } if key.is_empty() => add(context, &String::from_utf8_lossy(&context.input)).await,
        Action::Add { key } => add(context, &key.join(" ")).await,
        Action::Ls => ls(context).await,
        Action::Rm { fingerprint } => rm(context, fingerprint).await,
    }
}

async fn add(context: &Context<'_>, text: &str) -> Result<Answer, Refusal> {
    let key = auth::read_key(text)?;
    match context.call(Request::KeyAdd { key }).await? {
        Reply::Key(key) => Answer::new(format!("{} may log in as you now\n", key.fingerprint), &key),
        _ => Err(unexpected()),
    }
}

async fn ls(context: &Context<'_>) -> Result<Answer, Refusal> {
    let Reply::Keys(keys) = context.call(Request::KeyList).await? else { return Err(unexpected()) };
    let mut table = Table::with_header(&["FINGERPRINT", "TYPE", "COMMENT", "ADDED", "FROM"]);
    for key in &keys {
        let kind = key.public.split(' ').next().unwrap_or_default();
        let from = key.added_from.map_or_else(|| "-".to_owned(), |address| address.to_string());
        let cells = [&key.fingerprint, kind, &key.comment, &key.added.to_string(), &from];
        table.row(cells.map(|text| (text.to_owned(), Style::Plain)));
    }
    Answer::new(table.render(context.colour), &keys)
}

async fn rm(context: &Context<'_>, fingerprint: String) -> Result<Answer, Refusal> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+/:=".contains(&byte);
    if fingerprint.is_empty() || fingerprint.len() > 100 || !fingerprint.bytes().all(fits) {
        let hint = format!("see {} key ls", context.address.lobby());
        return Err(Refusal::new(Code::Usage, "that is no fingerprint", hint));
    }
    match context.call(Request::KeyRemove { fingerprint }).await? {
        Reply::Key(key) => Answer::new(format!("{} is removed\n", key.fingerprint), &key),
        _ => Err(unexpected()),
    }
}
