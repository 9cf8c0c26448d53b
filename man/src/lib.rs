//! The manual, made of the same definitions that commands and verbs are run by. It is of no
//! use at run time, so no program that is installed has it.

mod verbs;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::{fs, path::Path};

/// The programs whose command line is clap's. `berth-hostd` takes `--config FILE` and nothing else;
/// `berth-bridge` and `berth-jail` are started by hostd alone.
pub fn commands() -> [Command; 2] {
    [berth_cli::command(), berth_gateway::Arguments::command()]
}

/// Both directories hold nothing else afterwards, so that what went away leaves no page.
pub fn write(pages: &Path, completions: &Path) -> anyhow::Result<()> {
    for directory in [pages, completions] {
        if directory.exists() {
            fs::remove_dir_all(directory).with_context(|| format!("cannot empty {}", directory.display()))?;
        }
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    for mut command in commands() {
        let name = command.get_name().to_owned();
        // First: completions complete the command with a `help`, which is no page.
        clap_mangen::generate_to(command.clone(), pages)
            .with_context(|| format!("cannot write {name}'s pages"))?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut command, &name, completions)
                .with_context(|| format!("cannot write {name}'s completions for {shell}"))?;
        }
    }
    let page = pages.join("berth-verbs.7");
    fs::write(&page, verbs::page()).with_context(|| format!("cannot write {}", page.display()))
}
