//! `secret set|ls|rm`: credentials that machines use and never have.

use super::{Answer, Context, Help, args, ls, name, unexpected};
use crate::ui::{
    Style, Table,
    text::{QUOTED, printable},
};
use berth_api::{Reply, Request, SecretInput, SecretView};
use berth_types::{
    Code, Refusal,
    egress::{Binding, HostPattern, Projection, SecretName, SecretValue},
};
use clap::Parser;
use jiff::Timestamp;

pub const HELP: Help = Help {
    verb: "secret",
    usage: "secret set NAME --to HOST[,HOST…] FORM | secret ls | secret rm NAME",
    summary: "credentials that your machines use and never have",
    examples: &[
        "{ssh} {host} secret set openai --to api.openai.com --header 'Authorization: Bearer {}' < key.txt",
        "{ssh} {host} secret set git --to git.example.com --basic me < token.txt",
        "{ssh} {host} secret set corp --to grpc.corp.example:8443 --client-cert < cert-and-key.pem",
        "{ssh} {host} secret set STRIPE_KEY --to api.stripe.com --placeholder < key.txt",
        "{ssh} {host} secret set deploy --to git.example.com --ssh --known-host \"$(cat known_host)\" < id_ed25519",
        "{ssh} {host} secret ls",
        "{ssh} {host} secret rm openai",
    ],
    notes: "The value comes on standard input and is never shown again. The host puts it into requests\n\
            to those hosts, over TLS only; in the machine it is nowhere.\n\
            FORM is one or more --header 'NAME: text with {}', --basic USER or --placeholder, which\n\
            puts NAME=berth_secret_… into machines' environment, to be used in its place; or one\n\
            of --client-cert and --ssh [--user USER] --known-host LINE, a line of ssh's known_hosts.\n\
            It is for all your machines; with --machine NAME for that one and its forks.\n\
            Set it again to replace the value: the next request has the new one.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    name: String,
    #[arg(long = "to", value_name = "HOST", required = true)]
    to: Vec<String>,
    #[arg(long = "header", allow_hyphen_values = true)]
    headers: Vec<String>,
    #[arg(long, allow_hyphen_values = true)]
    basic: Option<String>,
    #[arg(long)]
    client_cert: bool,
    #[arg(long)]
    placeholder: bool,
    #[arg(long)]
    ssh: bool,
    #[arg(long)]
    user: Option<String>,
    #[arg(long = "known-host")]
    known_hosts: Vec<String>,
    #[arg(long)]
    machine: Option<String>,
}

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct RawRemove {
    name: String,
}

pub fn wants_input(words: &[String]) -> bool {
    matches!(words, [verb, action, ..] if verb == HELP.verb && action == "set" && !args::asks_for_help(words))
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    match words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("set", rest)) => set(context, rest).await,
        Some(("ls", rest)) => {
            args::nothing(&HELP, rest, context.address)?;
            list(context).await
        }
        Some(("rm", rest)) => remove(context, rest).await,
        _ => Err(args::usage(&HELP, "say what to do with secrets", context.address)),
    }
}

async fn set(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, &joined(words), context.address)?;
    let secret = secret_name(&raw.name)?;
    let machine = raw.machine.as_deref().map(name).transpose()?;
    let to = hosts(raw.to.iter().flat_map(|list| list.split(',')))?;
    let binding = Binding::new(to, projections(&raw)?).map_err(|error| {
        Refusal::new(Code::Usage, error.to_string(), format!("see {} help secret", context.address.lobby()))
    })?;
    let value = SecretValue::from_input(context.input.to_vec()).map_err(|error| {
        Refusal::new(Code::Usage, error.to_string(), "give it on standard input: secret set … < FILE")
    })?;
    let request = Request::SecretSet { name: secret, binding, machine, value: SecretInput(value) };
    match context.call(request).await? {
        Reply::Secret(secret) => {
            Answer::new(format!("{} is set, for {}\n", secret.name, to_words(&secret)), &secret)
        }
        _ => Err(unexpected()),
    }
}

async fn list(context: &Context<'_>) -> Result<Answer, Refusal> {
    let Reply::Secrets(secrets) = context.call(Request::SecretList).await? else { return Err(unexpected()) };
    if secrets.is_empty() {
        return Answer::new(format!("no secrets; see {} help secret\n", context.address.lobby()), &secrets);
    }
    let now = Timestamp::now();
    let mut table = Table::with_header(&["NAME", "TO", "FORM", "MACHINES", "SET", ""]);
    for secret in &secrets {
        let machine = secret.machine.as_ref().map_or("all".to_owned(), |name| format!("{name} and forks"));
        let note = if secret.usable { "" } else { "the host cannot open it: set it again" };
        let cells = [
            secret.name.to_string(),
            to_words(secret),
            secret.forms.join(", "),
            machine,
            format!("{} ago", ls::since(secret.set, now)),
        ];
        let cells = cells.map(|text| (text, Style::Plain)).into_iter();
        table.row(cells.chain([(note.to_owned(), Style::Bad)]));
    }
    Answer::new(table.render(context.colour), &secrets)
}

async fn remove(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: RawRemove = args::parse(&HELP, words, context.address)?;
    match context.call(Request::SecretRemove { name: secret_name(&raw.name)? }).await? {
        Reply::Secret(secret) => Answer::new(format!("{} is removed\n", secret.name), &secret),
        _ => Err(unexpected()),
    }
}

fn to_words(secret: &SecretView) -> String {
    secret.to.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn secret_name(text: &str) -> Result<SecretName, Refusal> {
    text.parse().map_err(|error| {
        let message = format!("'{}' cannot name a secret", printable(text, QUOTED));
        Refusal::new(Code::Usage, message, format!("{error}"))
    })
}

/// Hosts as they are typed, for `secret` and `egress`.
pub fn hosts<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<HostPattern>, Refusal> {
    let parse = |text: &str| {
        text.parse().map_err(|error| {
            let message = format!("'{}' names no host", printable(text, QUOTED));
            Refusal::new(Code::Usage, message, format!("{error}"))
        })
    };
    texts.filter(|text| !text.is_empty()).map(parse).collect()
}

fn projections(raw: &Raw) -> Result<Vec<Projection>, Refusal> {
    let mut all = Vec::new();
    for header in &raw.headers {
        let Some((name, template)) = header.split_once(':') else {
            let message = format!("'{}' is no header", printable(header, QUOTED));
            return Err(Refusal::new(Code::Usage, message, "try --header 'Authorization: Bearer {}'"));
        };
        all.push(Projection::Header { name: name.trim().to_owned(), template: template.trim().to_owned() });
    }
    all.extend(raw.basic.clone().map(|user| Projection::Basic { user }));
    if raw.client_cert {
        all.push(Projection::ClientCertificate);
    }
    if raw.placeholder {
        all.push(Projection::Placeholder);
    }
    if raw.ssh {
        all.push(Projection::Ssh { user: raw.user.clone(), known_hosts: raw.known_hosts.clone() });
    } else if raw.user.is_some() || !raw.known_hosts.is_empty() {
        return Err(Refusal::new(
            Code::Usage,
            "--user and --known-host go with --ssh",
            "add --ssh, or leave them out",
        ));
    }
    Ok(all)
}

/// `ssh HOST secret set … --header 'A: b {}'` arrives without its quotes, for the
/// client's shell took them: what belongs to one option is put together again.
fn joined(words: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        all.push(word.clone());
        let is_header = word == "--header";
        if !is_header && word != "--known-host" {
            continue;
        }
        let mut parts: Vec<&str> = Vec::new();
        while let Some(part) = words.next_if(|part| !part.starts_with("--") || part.as_str() == "--") {
            parts.push(part);
            if is_header && part.contains("{}") {
                break;
            }
        }
        if !parts.is_empty() {
            all.push(parts.join(" "));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn what_a_shell_took_apart_is_put_together() {
        for (typed, meant) in [
            ("a --header X: b {} --to h", vec!["a", "--header", "X: b {}", "--to", "h"]),
            ("a --header X:{} rest", vec!["a", "--header", "X:{}", "rest"]),
            (
                "--ssh --known-host h ssh-ed25519 AAAA --to h",
                vec!["--ssh", "--known-host", "h ssh-ed25519 AAAA", "--to", "h"],
            ),
            ("--header --to h", vec!["--header", "--to", "h"]),
        ] {
            assert_eq!(joined(&words(typed)), meant);
        }
    }

    #[test]
    fn only_set_reads_a_value() {
        assert!(wants_input(&words("secret set a --to b")));
        for other in ["secret ls", "secret rm a", "secret set --help", "secret", "key set"] {
            assert!(!wants_input(&words(other)), "{other}");
        }
    }
}
