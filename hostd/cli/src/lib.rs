//! `berth`: the operator's command. A library, so that its manual can be made of it.

// First: the others write with its macros.
#[macro_use]
mod output;

mod api;
mod audit;
mod check;
mod context;
mod doctor;
mod image;
mod key;
mod lost;
mod secrets;
mod service;
mod status;
mod upgrade;
mod user;
mod version;

use berth_types::{Code, Refusal};
use clap::{CommandFactory, Parser, Subcommand};
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
    /// Run the service in the foreground; Ctrl-C stops it
    Run,
    /// Start the service in the background
    Up,
    /// Put the machines to sleep and stop the service
    Down,
    /// Is everything well?
    Status,
    /// What is there, what is missing, what will be used
    Doctor,
    /// Whose memory would another hypervisor not resume?
    UpgradeCheck(upgrade::UpgradeCheck),
    /// Is a configuration valid?
    Check(check::Check),
    /// Who may log in
    #[command(subcommand)]
    User(user::Command),
    /// What a start could not place, and moved aside
    #[command(subcommand)]
    Lost(lost::Command),
    /// How secrets are kept
    #[command(subcommand)]
    Secrets(secrets::Command),
    /// What was done here, and whether that record is whole
    #[command(subcommand)]
    Audit(audit::Command),
    /// What machines start from
    #[command(subcommand)]
    Image(image::Command),
    /// Which version this is
    Version,
}

/// What can be typed, for the manual.
pub fn command() -> clap::Command {
    Cli::command()
}

pub fn main() -> ExitCode {
    berth_sys::keep_private();
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
    let load = || Context::load(cli.config.clone(), cli.json);
    match cli.command {
        Command::Run => service::run::run(&load()?),
        Command::Up => service::up::run(&load()?),
        Command::Down => service::down::run(&load()?),
        Command::Status => status::run(&load()?),
        Command::Doctor => doctor::run(&load()?),
        Command::UpgradeCheck(arguments) => upgrade::run(&load()?, arguments),
        Command::User(command) => user::run(&load()?, command),
        Command::Lost(command) => lost::run(&load()?, command),
        Command::Secrets(command) => secrets::run(&load()?, command),
        Command::Audit(command) => audit::run(&load()?, command),
        Command::Image(command) => image::run(&load()?, command),
        // These two have to work where the configuration does not.
        Command::Check(arguments) => check::run(arguments, cli.config, cli.json),
        Command::Version => version::run(cli.json),
    }
}

/// One thread: the supervisor is bound to nothing but waiting.
fn runtime() -> Result<tokio::runtime::Runtime, Refusal> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Refusal::new(Code::Failed, format!("cannot start ({error})"), "try again"))
}
