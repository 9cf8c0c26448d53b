//! PID 1 of every machine: boots it, serves the host's streams, reaps, and is
//! its SFTP server. See docs/protocol.md.

mod account;
mod children;
mod control;
mod error;
mod exec;
mod forward;
mod guest;
#[cfg(feature = "hosted")]
mod hosted;
mod server;
mod sftp;
mod signals;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let result = match arguments.get(1).map(String::as_str) {
        Some("sftp") => sftp::run(),
        #[cfg(feature = "hosted")]
        Some("serve") => hosted::serve(arguments.get(2..).unwrap_or_default()),
        _ => Ok(()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("berth-guest-init: {}", error.line());
            ExitCode::FAILURE
        }
    }
}
