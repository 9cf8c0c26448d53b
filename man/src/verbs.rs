//! berth-verbs(7): what `ssh HOST` understands, for users with machines there.

use berth_gateway::{
    command::{Help, TOUR, VERBS},
    ui::Address,
};
use berth_types::Code;
use clap_mangen::roff::{Inline, Roff, bold, line_break, roman};

const INTRODUCTION: &str = "\
    A login name that is one of your machines reaches that machine. With any other login name the words are \
    a verb, and with no words you are in the machine 'main'. There is nothing to install: ssh, scp, sftp, \
    rsync and git are all that it takes. Every verb takes --json, and says more with --help.";

/// What each kind of refusal is, in the order of its exit status.
const REFUSALS: &[(Code, &str)] = &[
    (Code::Failed, "it failed"),
    (Code::Usage, "the words do not make a verb"),
    (Code::NotFound, "there is no such thing"),
    (Code::NotAllowed, "you may not do that"),
    (Code::Conflict, "not in the state that it is in"),
    (Code::Limit, "it would be more than you may have, or than there is"),
    (Code::Unavailable, "the service does not answer"),
];

pub fn page() -> String {
    let here = Address::new("HOST", 22);
    let mut page = Roff::new();
    page.control("TH", ["berth-verbs", "7", "", concat!("berth ", env!("CARGO_PKG_VERSION"))]);
    // Neither hyphens nor spaces but those that are typed.
    page.control("nh", []);
    page.control("ad", ["l"]);
    page.control("SH", ["NAME"]);
    page.text([roman("berth-verbs - machines of your own, by ssh")]);
    page.control("SH", ["SYNOPSIS"]);
    literal(&mut page, ["ssh HOST [VERB [WORD...]]", "ssh NAME@HOST [COMMAND...]"]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(INTRODUCTION)]);
    page.control("SH", ["MACHINES"]);
    for (line, meaning) in TOUR {
        item(&mut page, &here.fill(line), meaning);
    }
    page.control("SH", ["VERBS"]);
    for help in VERBS {
        verb(&mut page, help, &here);
    }
    page.control("SH", ["EXIT STATUS"]);
    page.text([roman("A verb's is one of these; a command's in a machine is its own.")]);
    item(&mut page, "0", "done");
    for (code, meaning) in REFUSALS {
        item(&mut page, &code.exit_status().to_string(), meaning);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("ssh"), roman("(1), "), bold("berth"), roman("(1)")]);
    page.render()
}

fn verb(page: &mut Roff, help: &Help, here: &Address) {
    page.control("SS", [help.verb]);
    literal(page, usages(help).iter().map(|usage| format!("{} {usage}", here.lobby())));
    page.control("PP", []);
    page.text([roman(plain(help.summary))]);
    if !help.notes.is_empty() {
        page.control("PP", []);
        page.text([roman(plain(&help.notes.replace('\n', " ")))]);
    }
    page.control("PP", []);
    page.text([roman("For example:")]);
    page.control("PP", []);
    page.control("RS", ["4"]);
    literal(page, help.examples.iter().map(|example| here.fill(example)));
    page.control("RE", []);
}

/// `secret set … | secret ls` is two lines; `egress NAME [show | log]` is one.
fn usages(help: &Help) -> Vec<String> {
    let parts: Vec<&str> = help.usage.split(" | ").collect();
    if parts.iter().all(|part| part.split(' ').next() == Some(help.verb)) {
        return parts.into_iter().map(str::to_owned).collect();
    }
    vec![help.usage.to_owned()]
}

/// Lines that stay as they are.
fn literal(page: &mut Roff, lines: impl IntoIterator<Item = impl AsRef<str>>) {
    let mut text: Vec<Inline> = Vec::new();
    for line in lines {
        if !text.is_empty() {
            text.push(line_break());
        }
        text.push(bold(plain(line.as_ref())));
    }
    page.text(text);
}

fn item(page: &mut Roff, term: &str, meaning: &str) {
    page.control("TP", []);
    page.text([bold(plain(term))]);
    page.text([roman(plain(meaning))]);
}

/// roff's own letters are ASCII.
fn plain(text: &str) -> String {
    text.replace('…', "...")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_exit_status_is_there_once_and_in_order() {
        let statuses: Vec<u8> = REFUSALS.iter().map(|(code, _)| code.exit_status()).collect();
        assert_eq!(statuses, [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn only_whole_usages_are_taken_apart() {
        let usages = |verb| usages(VERBS.iter().find(|help| help.verb == verb).unwrap()).len();
        assert_eq!((usages("secret"), usages("egress"), usages("idle")), (3, 1, 1));
    }
}
