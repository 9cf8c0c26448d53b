//! Each command and each verb is in the manual and, where it is a command, in the completions.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use berth_gateway::command::VERBS;
use clap::Command;
use std::{
    fs,
    path::{Path, PathBuf},
};

fn written(name: &str) -> (PathBuf, PathBuf) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (pages, completions) = (directory.join("man"), directory.join("completions"));
    berth_man::write(&pages, &completions).unwrap();
    (pages, completions)
}

/// As roff has it.
fn roff(text: &str) -> String {
    text.replace('-', "\\-").replace('\'', "\\*(Aq").replace('…', "...")
}

/// The command's own name and those of all below it: `berth`, `berth-user`, `berth-user-add`.
fn all(command: &Command, name: &str, found: &mut Vec<(String, Command)>) {
    found.push((name.to_owned(), command.clone()));
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        all(below, &format!("{name}-{}", below.get_name()), found);
    }
}

#[test]
fn every_command_has_its_page_and_its_options_are_in_it() {
    let (pages, _) = written("commands");
    for command in berth_man::commands() {
        let mut found = Vec::new();
        all(&command, command.get_name(), &mut found);
        for (name, command) in found {
            let page = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
            let about = command.get_about().unwrap().to_string();
            assert!(page.contains(&roff(&about)), "{name}: {about}");
            for option in command.get_arguments().filter_map(|argument| argument.get_long()) {
                assert!(page.contains(&roff(&format!("--{option}"))), "{name}: --{option}");
            }
        }
    }
}

#[test]
fn every_verb_is_in_the_page_of_verbs() {
    let (pages, _) = written("verbs");
    let page = fs::read_to_string(pages.join("berth-verbs.7")).unwrap();
    assert!(page.is_ascii());
    for help in VERBS {
        assert!(page.contains(&format!(".SS {}\n", help.verb)), "{}", help.verb);
        assert!(page.contains(&roff(help.summary)), "{}: {}", help.verb, help.summary);
        for part in help.usage.split(" | ").chain(help.notes.lines()) {
            assert!(page.contains(&roff(part)), "{}: {part}", help.verb);
        }
    }
}

#[test]
fn every_command_is_completed() {
    let (_, completions) = written("completions");
    for command in berth_man::commands() {
        let name = command.get_name();
        for file in [format!("{name}.bash"), format!("_{name}"), format!("{name}.fish")] {
            let text = fs::read_to_string(completions.join(&file)).unwrap();
            let mut found = Vec::new();
            all(&command, name, &mut found);
            for (_, command) in &found {
                assert!(text.contains(command.get_name()), "{file}: {}", command.get_name());
            }
        }
    }
}
