//! The grammar of `ssh [NAME@]HOST [COMMAND]`: what a login name and a command
//! mean together. Pure, so that every rule can be read and tested here.

use crate::{
    command,
    ui::{
        Address,
        text::{QUOTED, printable, printable_bytes, quoted, unsafe_to_show},
    },
};
use berth_api::Resolved;
use berth_types::{Code, DEFAULT_MACHINE, MachineName, Refusal};

/// More than any verb takes; what is longer was meant for a machine.
const COMMAND_MAX: usize = 64 * 1024;

/// Programs that clients start by themselves, for the user: scp, rsync, git.
const TRANSFERS: &[&[&[u8]]] = &[
    &[b"scp"],
    &[b"rsync", b"--server"],
    &[b"git-upload-pack"],
    &[b"git-receive-pack"],
    &[b"git-upload-archive"],
    &[b"git", b"upload-pack"],
    &[b"git", b"receive-pack"],
    &[b"git", b"upload-archive"],
];

/// What a session channel asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Shell,
    Exec(Vec<u8>),
    Sftp,
}

/// Which machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Machine(MachineName),
    /// `main`, made if it is missing.
    Default,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Machine {
        place: Place,
        request: Request,
        /// A machine that the login name may have meant.
        meant: Option<MachineName>,
    },
    /// A verb and its words.
    Verb(Vec<String>),
}

/// Where streams without a command go: forwards and agents.
pub fn place(resolved: Resolved) -> Place {
    match resolved {
        Resolved::Machine(name) => Place::Machine(name),
        Resolved::Lobby { .. } => Place::Default,
    }
}

pub fn route(resolved: Resolved, request: Request, address: &Address) -> Result<Route, Refusal> {
    let similar = match resolved {
        Resolved::Machine(name) => {
            return Ok(Route::Machine { place: Place::Machine(name), request, meant: None });
        }
        Resolved::Lobby { similar } => similar,
    };
    match request {
        Request::Exec(line) if !is_transfer(&line) => words(&line, address).map(Route::Verb),
        request => Ok(Route::Machine { place: Place::Default, request, meant: similar }),
    }
}

/// Of a line that may not even split into words.
pub fn asks_for_json(line: &[u8]) -> bool {
    line.split(u8::is_ascii_whitespace).any(|word| word == b"--json")
}

fn is_transfer(line: &[u8]) -> bool {
    let words: Vec<&[u8]> =
        line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).take(2).collect();
    TRANSFERS.iter().any(|transfer| words.starts_with(transfer))
}

/// Splits a line as a shell would; its first word is a verb.
fn words(line: &[u8], address: &Address) -> Result<Vec<String>, Refusal> {
    let usage = |message: String, hint: String| Refusal::new(Code::Usage, message, hint);
    let help = || format!("see {} help", address.lobby());
    if line.len() > COMMAND_MAX {
        let message = format!("a command of {} bytes is too long for a verb", line.len());
        return Err(usage(message, format!("to run it in your machine type: {} …", machine(address))));
    }
    let Ok(text) = std::str::from_utf8(line) else {
        return Err(usage(format!("'{}' is not UTF-8 text", printable_bytes(line, QUOTED)), help()));
    };
    let first = text.split_whitespace().next().unwrap_or_default();
    if first.is_empty() {
        return Err(usage("the command is empty".into(), help()));
    }
    if !command::is_verb(first) {
        let mut run = machine(address);
        if text.chars().any(unsafe_to_show) || text.chars().count() > 200 {
            run.push_str(" COMMAND");
        } else {
            run = format!("{run} {}", quoted(text));
        }
        let message = format!("'{}' is no verb", printable(first, QUOTED));
        return Err(usage(message, format!("to run it in your machine type: {run}")));
    }
    let Some(words) = shlex::split(text) else {
        return Err(usage("a quote is not closed".into(), help()));
    };
    match words.iter().find(|word| word.chars().any(char::is_control)) {
        Some(word) => Err(usage(
            format!("'{}' contains control characters", printable(word, QUOTED)),
            "type it again without them".into(),
        )),
        None => Ok(words),
    }
}

fn machine(address: &Address) -> String {
    address.machine(DEFAULT_MACHINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lobby() -> Resolved {
        Resolved::Lobby { similar: None }
    }

    fn at(resolved: Resolved, line: &str) -> Result<Route, Refusal> {
        route(resolved, Request::Exec(line.into()), &Address::new("localhost", 2222))
    }

    fn refused(line: &[u8]) -> String {
        let request = Request::Exec(line.to_vec());
        let refusal = route(lobby(), request, &Address::new("localhost", 2222)).unwrap_err();
        assert_eq!(refusal.code, Code::Usage);
        let text = refusal.to_string();
        assert!(!text.chars().any(char::is_control) && text.len() < 400, "{text}");
        text
    }

    #[test]
    fn a_machine_takes_everything_even_verbs() {
        let dev: MachineName = "dev".parse().unwrap();
        let place = Place::Machine(dev.clone());
        for line in ["ls", "new x", "\u{7}", "echo 'unclosed"] {
            let request = Request::Exec(line.into());
            let expected = Route::Machine { place: place.clone(), request, meant: None };
            assert_eq!(at(Resolved::Machine(dev.clone()), line), Ok(expected));
        }
    }

    #[test]
    fn the_lobby_reads_verbs() {
        assert_eq!(
            at(lobby(), "new 'a b' --json"),
            Ok(Route::Verb(vec!["new".into(), "a b".into(), "--json".into()]))
        );
    }

    #[test]
    fn transfers_and_shells_reach_the_default_machine() {
        for line in
            ["scp -t .", "scp -f x", "rsync --server -e.L . x", "git-upload-pack 'r'", "git upload-pack r"]
        {
            assert!(matches!(at(lobby(), line), Ok(Route::Machine { place: Place::Default, .. })), "{line}");
        }
        let similar = Some("dev".parse().unwrap());
        let route = route(
            Resolved::Lobby { similar: similar.clone() },
            Request::Shell,
            &Address::new("localhost", 2222),
        );
        let expected = Route::Machine { place: Place::Default, request: Request::Shell, meant: similar };
        assert_eq!(route, Ok(expected));
    }

    #[test]
    fn an_unknown_word_says_how_to_run_it() {
        assert_eq!(
            refused(b"echo hi > note"),
            "'echo' is no verb: to run it in your machine type: ssh -p 2222 main@localhost 'echo hi > note'"
        );
        assert_eq!(
            refused(b"git log"),
            "'git' is no verb: to run it in your machine type: ssh -p 2222 main@localhost 'git log'"
        );
    }

    #[test]
    fn bad_input_is_one_line() {
        assert_eq!(refused(b"new 'dev"), "a quote is not closed: see ssh -p 2222 localhost help");
        assert!(refused(b"new \x1b[2J").contains("control characters"));
        assert!(refused(b"\x1b[2J x").contains("is no verb"));
        assert!(refused(b"new \xff").contains("not UTF-8"));
        assert!(refused(b"   ").contains("empty"));
        assert!(refused(&[b'x'; 1 << 20]).contains("too long"));
        assert!(refused(&[b'x'; 1 << 15]).contains("no verb"));
    }
}
