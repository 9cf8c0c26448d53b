//! `help [VERB]`: lines that can be pasted.

use super::{Answer, Context, VERBS};
use crate::ui::{
    Style, Table,
    text::{QUOTED, printable},
};
use berth_types::{Code, Refusal};
use serde::Serialize;
use serde_json::json;

/// What each verb says of itself.
#[derive(Debug, Serialize)]
pub struct Help {
    pub verb: &'static str,
    /// As typed after the host.
    pub usage: &'static str,
    pub summary: &'static str,
    /// `{ssh}`, `{scp}` and `{host}` are filled in.
    pub examples: &'static [&'static str],
    pub notes: &'static str,
}

pub const HELP: Help = Help {
    verb: "help",
    usage: "help [VERB]",
    summary: "this, or all about one verb",
    examples: &["{ssh} {host} help new"],
    notes: "",
};

/// How a machine is reached, and what that does.
pub const TOUR: &[(&str, &str)] = &[
    ("{ssh} {host}", "a shell in your machine 'main'"),
    ("{ssh} dev@{host}", "a shell in your machine 'dev'"),
    ("{ssh} dev@{host} uname -a", "a command there"),
    ("{scp} -r src dev@{host}:", "files; sftp, rsync and git work too"),
    ("{ssh} -L 8080:localhost:80 dev@{host}", "forwards; -R, -D, -A and -J work too"),
];

pub fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    match words {
        [] => overview(context),
        [verb] => match VERBS.iter().find(|help| help.verb == verb) {
            Some(help) => one(context, help),
            None => {
                let message = format!("'{}' is no verb", printable(verb, QUOTED));
                let hint = format!("see {} help", context.address.lobby());
                Err(Refusal::new(Code::Usage, message, hint))
            }
        },
        _ => Err(super::args::usage(&HELP, "help takes one verb", context.address)),
    }
}

pub fn overview(context: &Context<'_>) -> Result<Answer, Refusal> {
    let mut tour = Table::default();
    for (line, meaning) in TOUR {
        let line = context.address.fill(&format!("  {line}"));
        tour.row([(line, Style::Plain), ((*meaning).to_owned(), Style::Faint)]);
    }
    let mut verbs = Table::default();
    for help in VERBS {
        let line = format!("  {} {}", context.address.lobby(), help.usage);
        verbs.row([(line, Style::Plain)]);
        verbs.row([(format!("      {}", help.summary), Style::Faint)]);
    }
    let text = format!(
        "Machines:\n{}\nVerbs:\n{}\nEvery verb takes --json. More: {} help VERB\n",
        tour.render(context.colour),
        verbs.render(context.colour),
        context.address.lobby(),
    );
    Answer::new(text, &json!({ "verbs": VERBS }))
}

fn one(context: &Context<'_>, help: &Help) -> Result<Answer, Refusal> {
    let mut text = format!("{} {}\n    {}\n", context.address.lobby(), help.usage, help.summary);
    if !help.notes.is_empty() {
        text.push_str(&format!("\n{}\n", help.notes));
    }
    text.push_str("\nFor example:\n");
    for example in help.examples {
        text.push_str(&context.address.fill(&format!("  {example}\n")));
    }
    Answer::new(text, help)
}
