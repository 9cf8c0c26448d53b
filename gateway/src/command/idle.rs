//! `idle NAME`: when it rests.

use super::{Answer, Context, Help, args, name, unexpected, when};
use berth_api::{Reply, Request, WhyView};
use berth_types::{IdlePolicy, Refusal, Span};
use clap::Parser;

pub const HELP: Help = Help {
    verb: "idle",
    usage: "idle NAME [--pause 30s|never] [--sleep 10m|never] [--default]",
    summary: "when a machine rests: how long it is idle before it pauses, and before it sleeps",
    examples: &[
        "{ssh} {host} idle dev",
        "{ssh} {host} idle dev --pause 30s --sleep 10m",
        "{ssh} {host} idle dev --default",
    ],
    notes: "What counts as idle: no command, no bytes, no job that works, no CPU, no keepalive.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    name: String,
    #[arg(long, allow_hyphen_values = true)]
    pause: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    sleep: Option<String>,
    #[arg(long)]
    default: bool,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let name = name(&raw.name)?;
    let pause = raw.pause.as_deref().map(|text| limit("--pause", text)).transpose()?;
    let sleep = raw.sleep.as_deref().map(|text| limit("--sleep", text)).transpose()?;
    let now = ask(context, Request::Why { name: name.clone() }).await?;
    let request = match (pause, sleep, raw.default) {
        (None, None, false) => Request::Why { name },
        (None, None, true) => Request::Idle { name, policy: None },
        (pause, sleep, false) => {
            let IdlePolicy { pause: old_pause, sleep: old_sleep } = now.policy;
            let policy = IdlePolicy { pause: pause.unwrap_or(old_pause), sleep: sleep.unwrap_or(old_sleep) };
            Request::Idle { name, policy: Some(policy) }
        }
        (_, _, true) => return Err(args::usage(&HELP, "--default goes alone", context.address)),
    };
    let why = ask(context, request).await?;
    let show =
        |limit: Option<Span>| limit.map_or("never".to_owned(), |limit| format!("when idle for {limit}"));
    let text = format!("{} pauses {}, sleeps {}\n", why.name, show(why.policy.pause), show(why.policy.sleep));
    Answer::new(text, &why)
}

async fn ask(context: &Context<'_>, request: Request) -> Result<WhyView, Refusal> {
    match context.call(request).await? {
        Reply::Why(why) => Ok(why),
        _ => Err(unexpected()),
    }
}

fn limit(option: &str, text: &str) -> Result<Option<Span>, Refusal> {
    if text == "never" { Ok(None) } else { when::span(option, text).map(Some) }
}
