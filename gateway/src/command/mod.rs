//! The verbs, a file each. A verb parses its words into raw arguments, makes
//! them valid ones, asks hostd, and answers with a text and a value.

mod args;
mod audit;
mod egress;
mod fork;
mod help;
mod idle;
mod info;
mod keepalive;
mod key;
mod ls;
mod new;
mod rename;
mod restart;
mod restore;
mod rm;
mod secret;
mod sleep;
mod snapshot;
mod snapshots;
mod stop;
mod tree;
mod version;
mod wake;
mod when;
mod whoami;
mod why;

pub use help::{Help, TOUR};

use crate::{
    ssh::peer::told,
    ui::{
        Address, Progress,
        text::{QUOTED, printable},
    },
};
use berth_api::{Caller, Client, Reply, Request, Session};
use berth_types::{Code, InvalidName, MachineName, Refusal};
use serde::Serialize;
use serde_json::Value;
use zeroize::Zeroizing;

/// What a verb reads at most: a secret that is too long is told so.
pub const INPUT_MAX: usize = 66 * 1024;

/// In the order that `help` shows them.
pub const VERBS: &[&Help] = &[
    &new::HELP,
    &ls::HELP,
    &info::HELP,
    &tree::HELP,
    &fork::HELP,
    &snapshot::HELP,
    &snapshots::HELP,
    &restore::HELP,
    &sleep::HELP,
    &wake::HELP,
    &why::HELP,
    &keepalive::HELP,
    &idle::HELP,
    &stop::HELP,
    &restart::HELP,
    &rename::HELP,
    &rm::HELP,
    &secret::HELP,
    &egress::HELP,
    &audit::HELP,
    &key::HELP,
    &whoami::HELP,
    &help::HELP,
    &version::HELP,
];

pub fn is_verb(word: &str) -> bool {
    VERBS.iter().any(|help| help.verb == word)
}

/// What a verb may use.
#[derive(Debug)]
pub struct Context<'a> {
    pub api: &'a Client,
    pub address: &'a Address,
    pub session: Session,
    pub progress: Progress,
    /// The client has a terminal.
    pub colour: bool,
    /// The answer is read by a program.
    pub json: bool,
    /// What came on standard input, for verbs that want it.
    pub input: Zeroizing<Vec<u8>>,
}

/// What a verb has to say, for people and for programs.
#[derive(Debug, PartialEq)]
pub struct Answer {
    pub text: String,
    pub value: Value,
}

impl Answer {
    pub fn new(text: impl Into<String>, value: &impl Serialize) -> Result<Self, Refusal> {
        let value = serde_json::to_value(value).map_err(|error| {
            Refusal::new(Code::Failed, format!("the answer has no JSON form: {error}"), "")
        })?;
        Ok(Self { text: text.into(), value })
    }
}

impl Context<'_> {
    pub async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        let caller = Caller::User(self.session.clone());
        let reply = self.api.call_with(caller, request, |text| self.progress.report(text)).await;
        reply.map(|(reply, _)| reply).map_err(told)
    }
}

/// hostd spoke, but not what was asked: the two are of different releases.
pub fn unexpected() -> Refusal {
    Refusal::new(Code::Failed, "the host gave an answer that does not fit", "tell its operator")
}

/// `--json`, anywhere before `--`, and what remains without it.
pub fn split_json(words: Vec<String>) -> (bool, Vec<String>) {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let is_json = |(index, word): &(usize, String)| *index < end && word == "--json";
    let before = words.len();
    let rest: Vec<String> =
        words.into_iter().enumerate().filter(|pair| !is_json(pair)).map(|(_, word)| word).collect();
    (rest.len() < before, rest)
}

/// Must standard input be read to its end before the verb can run?
pub fn wants_input(words: &[String]) -> bool {
    key::wants_input(words) || secret::wants_input(words)
}

/// Runs a verb; the first word is its name.
pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let Some((verb, words)) = words.split_first() else { return help::overview(context) };
    if args::asks_for_help(words) {
        return help::run(context, std::slice::from_ref(verb));
    }
    match verb.as_str() {
        "new" => new::run(context, words).await,
        "ls" => ls::run(context, words).await,
        "info" => info::run(context, words).await,
        "tree" => tree::run(context, words).await,
        "fork" => fork::run(context, words).await,
        "snapshot" => snapshot::run(context, words).await,
        "snapshots" => snapshots::run(context, words).await,
        "restore" => restore::run(context, words).await,
        "sleep" => sleep::run(context, words).await,
        "wake" => wake::run(context, words).await,
        "why" => why::run(context, words).await,
        "keepalive" => keepalive::run(context, words).await,
        "idle" => idle::run(context, words).await,
        "stop" => stop::run(context, words).await,
        "restart" => restart::run(context, words).await,
        "rename" => rename::run(context, words).await,
        "rm" => rm::run(context, words).await,
        "secret" => secret::run(context, words).await,
        "egress" => egress::run(context, words).await,
        "audit" => audit::run(context, words).await,
        "key" => key::run(context, words).await,
        "whoami" => whoami::run(context, words).await,
        "version" => version::run(context, words),
        _ => help::run(context, words),
    }
}

fn name(text: &str) -> Result<MachineName, Refusal> {
    text.parse().map_err(|error: InvalidName| error.refusal(&printable(text, QUOTED)))
}

/// A name that a machine is to be given.
fn new_name(text: &str) -> Result<MachineName, Refusal> {
    name(text)?.for_new_machine()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        shlex::split(text).unwrap()
    }

    #[test]
    fn every_verb_is_reserved() {
        for help in VERBS {
            assert!(berth_types::RESERVED.contains(&help.verb), "{}", help.verb);
        }
    }

    #[test]
    fn json_may_stand_anywhere() {
        assert_eq!(split_json(words("ls --json")), (true, words("ls")));
        assert_eq!(split_json(words("--json ls x")), (true, words("ls x")));
        assert_eq!(split_json(words("rm -- --json")), (false, words("rm -- --json")));
    }
}
