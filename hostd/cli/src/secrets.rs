//! `berth secrets`: how secrets are kept. What they are is their users' business.

use crate::{api, context::Context, output};
use berth_api::{Reply, Request};
use berth_types::Refusal;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make another master key, and seal every secret under it
    Rekey,
}

pub fn run(context: &Context, command: Command) -> Result<(), Refusal> {
    let Command::Rekey = command;
    let Reply::Done = api::call(context, Request::Rekey)? else {
        return Err(api::unexpected());
    };
    if context.json {
        return output::json(&serde_json::json!({ "rekeyed": true }));
    }
    show!("done; keep the new DATA/secrets/master.key with your backups, and destroy the old one there");
    Ok(())
}
