//! The gateway's command line.

use clap::Parser;
use std::path::PathBuf;

/// The SSH gateway of berth.
#[derive(Debug, Parser)]
#[command(name = "berth-gateway", version)]
pub struct Arguments {
    /// The configuration file.
    #[arg(long)]
    pub config: PathBuf,
}
