//! PID 1 of every machine: boots it, serves the host's streams, reaps, and is
//! its SFTP server. See docs/protocol.md.

mod account;
mod ask;
mod boot;
mod children;
mod control;
mod error;
mod exec;
mod forward;
mod guest;
#[cfg(feature = "hosted")]
mod hosted;
mod incarnation;
mod rehearse;
mod server;
mod sftp;
mod signals;
mod traffic;

use std::{path::Path, process::ExitCode};

use rustix::process::{Pid, getpid};

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let (program, rest) = arguments.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if getpid() == Pid::INIT {
        return boot();
    }
    let result = match (ask::parse(name, rest), rest.first().map(String::as_str)) {
        (Some(ask), _) => ask::run(name, ask),
        (None, Some("sftp")) => sftp::run(),
        #[cfg(feature = "hosted")]
        (None, Some("serve")) => hosted::serve(rest.get(1..).unwrap_or_default()),
        _ => {
            eprintln!("berth-guest-init: this is PID 1 of a berth machine: there is nothing to run by hand");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {}", if name.is_empty() { "berth-guest-init" } else { name }, error.line());
            ExitCode::FAILURE
        }
    }
}

/// The end of PID 1 is a panic of the kernel: it ends the machine, and the
/// console has said why.
fn boot() -> ExitCode {
    if let Err(error) = boot::run() {
        boot::say(&format!("boot failed: {}", error.line()));
    }
    ExitCode::FAILURE
}
