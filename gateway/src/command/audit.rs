//! `audit`: what was done in your name, and what your machines reached.

use super::{Answer, Context, Help, args, name, unexpected, when};
use crate::ui::{Style, Table, text::printable};
use berth_api::{Reply, Request};
use berth_types::{AuditEntry, AuditEvent, EgressEntry, MachineName, Refusal, Span};
use clap::Parser;

/// As much as one looks through.
pub const MOST: u32 = 200;
/// With --json, for programs.
const MOST_JSON: u32 = 5_000;

pub const HELP: Help = Help {
    verb: "audit",
    usage: "audit [--machine NAME] [--since 1h]",
    summary: "what was done in your name, and what your machines reached",
    examples: &[
        "{ssh} {host} audit",
        "{ssh} {host} audit --machine dev --since 1h",
        "{ssh} {host} audit --json",
    ],
    notes: "The newest 200 entries, with --json 5000. 'egress NAME log' shows only what a machine reached.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    #[arg(long)]
    machine: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    since: Option<String>,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let machine = raw.machine.as_deref().map(name).transpose()?;
    let since = raw.since.as_deref().map(|text| when::span("--since", text)).transpose()?;
    let most = if context.json { MOST_JSON } else { MOST };
    show(context, machine, since, false, most).await
}

pub async fn show(
    context: &Context<'_>,
    machine: Option<MachineName>,
    since: Option<Span>,
    egress: bool,
    most: u32,
) -> Result<Answer, Refusal> {
    match context.call(Request::Audit { machine, since, egress, most }).await? {
        Reply::Audit(entries) if entries.is_empty() => Answer::new("nothing yet\n", &entries),
        Reply::Audit(entries) => Answer::new(table(&entries).render(context.colour), &entries),
        _ => Err(unexpected()),
    }
}

fn table(entries: &[AuditEntry]) -> Table {
    let mut table = Table::with_header(&["TIME", "MACHINE", "WHAT", "OUTCOME", ""]);
    for entry in entries {
        let machine = entry.event.machine().map(ToString::to_string).unwrap_or_default();
        let (what, outcome, good, detail) = words(&entry.event);
        let style = if good { Style::Plain } else { Style::Bad };
        let time = entry.time.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
        table.row([
            (time, Style::Faint),
            (machine, Style::Plain),
            (what, Style::Plain),
            (outcome, style),
            (detail, Style::Faint),
        ]);
    }
    table
}

/// What it was, what came of it, whether that is good, and the rest.
fn words(event: &AuditEvent) -> (String, String, bool, String) {
    let shown = |text: &str| printable(text, 200);
    match event {
        AuditEvent::Login { fingerprint, registered, .. } => {
            let outcome = if *registered { "registered" } else { "accepted" };
            ("login".to_owned(), outcome.to_owned(), true, shown(fingerprint))
        }
        AuditEvent::Verb { verb, outcome, detail, .. } => {
            (shown(verb), shown(outcome), outcome == "done", shown(detail))
        }
        AuditEvent::Machine { state, detail, .. } => {
            ("state".to_owned(), shown(state), state != "failed", shown(detail))
        }
        AuditEvent::Egress(entry) => egress(entry),
        AuditEvent::Counted { verb, events, .. } => {
            (shown(verb), format!("{events} more"), true, "within a minute, not listed one by one".to_owned())
        }
        // The operator's; nobody else is sent them.
        other => (format!("{other:?}").chars().take(40).collect(), String::new(), true, String::new()),
    }
}

fn egress(entry: &EgressEntry) -> (String, String, bool, String) {
    let address = entry.address.map(|address| address.to_string()).unwrap_or_default();
    let host = if entry.host.is_empty() { &address } else { &entry.host };
    let claimed = entry.claimed.as_ref().map(|claimed| format!(" as {claimed}")).unwrap_or_default();
    let port = if entry.port == 0 { String::new() } else { format!(":{}", entry.port) };
    let reason = if entry.reason.is_empty() { String::new() } else { format!(": {}", entry.reason) };
    let bytes = if entry.up + entry.down == 0 {
        String::new()
    } else {
        format!(", {} bytes up, {} down", entry.up, entry.down)
    };
    let times = if entry.times == 0 { String::new() } else { format!(", {} more like it", entry.times) };
    (
        printable(&format!("{} {host}{port}{claimed}", entry.protocol), 120),
        printable(&entry.verdict, 20),
        entry.verdict == "allowed",
        printable(&format!("by {}{reason}{bytes}{times}", entry.rule), 200),
    )
}
