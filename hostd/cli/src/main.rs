//! `berth`: the operator's command.

mod context;
mod image;
mod output;

use berth_types::Refusal;
use clap::{Parser, Subcommand};
use context::Context;
use std::{path::PathBuf, process::ExitCode};

/// Computers that are there when you type ssh
#[derive(Debug, Parser)]
#[command(name = "berth", version)]
struct Cli {
    /// The configuration [default: /etc/berth/berth.toml, else the one built in]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Answer with one JSON value
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What machines start from
    #[command(subcommand)]
    Image(image::Command),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.json;
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            output::refusal(&refusal, json);
            ExitCode::from(refusal.code.exit_status())
        }
    }
}

fn run(cli: Cli) -> Result<(), Refusal> {
    let context = Context::load(cli.config, cli.json)?;
    match cli.command {
        Command::Image(command) => image::run(&context, command),
    }
}
