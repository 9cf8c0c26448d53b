//! What every command needs: the configuration and how to answer.

use berth_config::{Config, ConfigError, Loaded};
use berth_types::{Code, Refusal};
use std::path::{Path, PathBuf};

/// Read when no other is named.
pub const DEFAULT_PATH: &str = "/etc/berth/berth.toml";

#[derive(Debug)]
pub struct Context {
    pub config: Config,
    /// Where it came from; `None`: the one built in.
    pub path: Option<PathBuf>,
    pub json: bool,
}

impl Context {
    pub fn load(path: Option<PathBuf>, json: bool) -> Result<Self, Refusal> {
        let path = path.or_else(|| Some(PathBuf::from(DEFAULT_PATH)).filter(|path| path.exists()));
        let loaded = read(path.as_deref())?;
        for key in &loaded.unknown {
            say!("berth: unknown key {key} in the configuration: it is ignored");
        }
        Ok(Self { config: loaded.config, path, json })
    }

    /// What a person types to get a machine.
    pub fn ssh_line(&self) -> String {
        let gateway = &self.config.gateway;
        match gateway.shown_port() {
            22 => format!("ssh {}", gateway.public_host),
            port => format!("ssh -p {port} {}", gateway.public_host),
        }
    }

    pub fn need_root(&self, command: &str) -> Result<(), Refusal> {
        if nix::unistd::geteuid().is_root() {
            Ok(())
        } else {
            let message = format!("'berth {command}' needs root");
            Err(Refusal::new(Code::NotAllowed, message, "run it with sudo"))
        }
    }
}

/// Reads a configuration; `None`: the one built in.
pub fn read(path: Option<&Path>) -> Result<Loaded, Refusal> {
    let loaded = match path {
        Some(path) => berth_config::load(path),
        None => berth_config::parse(berth_config::DEFAULT_TOML),
    };
    loaded.map_err(|error| {
        let name = path.map_or_else(|| "the configuration".to_owned(), |path| path.display().to_string());
        match error {
            ConfigError::Read { source, .. } => {
                let message = format!("cannot read {name} ({source})");
                Refusal::new(Code::Usage, message, "name a configuration with --config FILE")
            }
            ConfigError::Syntax(error) => {
                let line = error.message().lines().next().unwrap_or_default().to_owned();
                Refusal::new(
                    Code::Usage,
                    format!("{name}: {line}"),
                    "see the comments in config/default.toml",
                )
            }
            ConfigError::Invalid(problems) => {
                Refusal::new(Code::Usage, format!("{name}: {}", problems.join("; ")), "change it")
            }
        }
    })
}

/// A program of ours: beside this one, or wherever PATH has it.
pub fn beside(program: &str) -> PathBuf {
    std::env::current_exe()
        .ok()
        .and_then(|this| Some(this.parent()?.join(program)))
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from(program))
}
