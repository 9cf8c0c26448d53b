//! `egress NAME …`: what a machine may reach, and what it did reach.

use super::{Answer, Context, Help, args, audit, name, secret, unexpected};
use crate::ui::{Table, text::quoted};
use berth_api::{EgressChange, EgressTarget, EgressView, Ineffective, Reply, Request};
use berth_types::{
    Refusal,
    egress::{EgressMode, HostPattern},
};
use clap::Parser;

pub const HELP: Help = Help {
    verb: "egress",
    usage: "egress NAME|--all|--label K=V [show | allow HOST… | deny HOST… | passthrough HOST… | forget HOST… | \
            open | allowlist | closed | default | log]",
    summary: "what a machine may reach, and what it did reach",
    examples: &[
        "{ssh} {host} egress dev",
        "{ssh} {host} egress dev allow '*.debian.org' api.openai.com 10.0.0.0/8:5432",
        "{ssh} {host} egress dev allowlist",
        "{ssh} {host} egress dev deny tracker.example",
        "{ssh} {host} egress dev log",
        "{ssh} {host} egress --label team=web closed",
    ],
    notes: "open: everything public that is not denied. allowlist: only what is allowed. closed: nothing.\n\
            A host is a name, *.NAME one part deep, an address or a network, each with :PORT if only\n\
            that is meant. Private addresses are reached only by address, and where the operator\n\
            leaves that to users; the host itself, loopback and reserved addresses never.\n\
            Changes count at once, also for connections that are open. passthrough: its TLS is never\n\
            opened, so no secret goes there. forget takes hosts out of every list, default takes away\n\
            the machine's own policy: then its labels', yours (--all) or the installation's counts.",
};

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    /// The name first, where neither option is given.
    words: Vec<String>,
    #[arg(long)]
    all: bool,
    #[arg(long)]
    label: Option<String>,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let usage = |message: &str| args::usage(&HELP, message, context.address);
    let mut words = raw.words.iter().map(String::as_str);
    let target = match (raw.all, raw.label) {
        (true, None) => EgressTarget::All,
        (false, Some(label)) => {
            let (key, value) = label.split_once('=').ok_or_else(|| usage("a label is K=V"))?;
            EgressTarget::Label { key: key.to_owned(), value: value.to_owned() }
        }
        (true, Some(_)) => return Err(usage("--all and --label are two things")),
        (false, None) => EgressTarget::Machine(name(words.next().ok_or_else(|| usage("NAME is missing"))?)?),
    };
    let action = words.next().unwrap_or("show");
    let hosts = secret::hosts(words)?;
    if action == "log" {
        let EgressTarget::Machine(machine) = target else {
            return Err(usage("a log is a machine's: name it"));
        };
        none(&hosts).map_err(|()| usage("log takes no host"))?;
        return audit::show(context, Some(machine), None, true, audit::MOST).await;
    }
    let change = change(action, hosts).map_err(|message| usage(&message))?;
    let lists = matches!(change, Some(EgressChange::Allow(_)));
    match context.call(Request::Egress { target, change }).await? {
        Reply::Egress(view) => {
            let mut text = table(&view).render(context.colour);
            if lists
                && view.policy.mode == EgressMode::Open
                && !view.policy.allow.iter().all(HostPattern::is_network)
            {
                let line = format!("{} egress {} allowlist", context.address.lobby(), words_of(&view.target));
                text.push_str(&format!("it is open: for nothing but what is allowed type: {line}\n"));
            }
            Answer::new(text, &view)
        }
        _ => Err(unexpected()),
    }
}

fn change(action: &str, hosts: Vec<HostPattern>) -> Result<Option<EgressChange>, String> {
    let some = |hosts: Vec<HostPattern>, change: fn(Vec<HostPattern>) -> EgressChange| {
        if hosts.is_empty() { Err("HOST is missing".to_owned()) } else { Ok(Some(change(hosts))) }
    };
    match action {
        "allow" => some(hosts, EgressChange::Allow),
        "deny" => some(hosts, EgressChange::Deny),
        "passthrough" => some(hosts, EgressChange::Passthrough),
        "forget" => some(hosts, EgressChange::Forget),
        "show" | "default" | "open" | "allowlist" | "closed" => {
            none(&hosts).map_err(|()| format!("{action} takes no host"))?;
            Ok(match action {
                "show" => None,
                "default" => Some(EgressChange::Default),
                mode => mode.parse().ok().map(EgressChange::Mode),
            })
        }
        other => Err(format!("there is nothing called '{}' to do", crate::ui::text::printable(other, 60))),
    }
}

fn none(hosts: &[HostPattern]) -> Result<(), ()> {
    if hosts.is_empty() { Ok(()) } else { Err(()) }
}

fn words_of(target: &EgressTarget) -> String {
    match target {
        EgressTarget::Machine(name) => name.to_string(),
        EgressTarget::All => "--all".to_owned(),
        EgressTarget::Label { key, value } => format!("--label {}", quoted(&format!("{key}={value}"))),
    }
}

fn table(view: &EgressView) -> Table {
    let mut table = Table::default();
    let from = match view.from.as_str() {
        "machine" => "",
        "label" => " (by its label)",
        "user" => " (as all your machines)",
        _ => " (the installation's default)",
    };
    table.pair("mode", format!("{}{from}", view.policy.mode));
    table.pair("reaches", view.reaches.as_str());
    let lists = [
        ("allowed", &view.policy.allow),
        ("denied", &view.policy.deny),
        ("passthrough", &view.policy.passthrough),
        ("never", &view.never),
    ];
    for (what, rules) in lists {
        for rule in rules {
            table.pair(what, rule.to_string());
        }
    }
    for Ineffective { rule, why } in &view.ineffective {
        table.pair("no effect", format!("{rule}: {why}"));
    }
    for secret in &view.secrets {
        table.pair("secret", secret.as_str());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_done() {
        let hosts = || vec!["a.example".parse().unwrap()];
        assert_eq!(change("show", vec![]), Ok(None));
        assert_eq!(change("allow", hosts()), Ok(Some(EgressChange::Allow(hosts()))));
        assert_eq!(change("closed", vec![]), Ok(Some(EgressChange::Mode(EgressMode::Closed))));
        for (action, hosts) in [("allow", vec![]), ("open", hosts()), ("nothing", vec![])] {
            assert!(change(action, hosts).is_err(), "{action}");
        }
    }
}
