//! `berth check`: is this configuration what its author meant?

use crate::{
    context::{self, DEFAULT_PATH},
    output,
};
use berth_types::{Code, Refusal};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct Check {
    /// The file to check [default: the configuration in use]
    file: Option<PathBuf>,
}

pub fn run(arguments: Check, config: Option<PathBuf>, json: bool) -> Result<(), Refusal> {
    let path = arguments
        .file
        .or(config)
        .or_else(|| Some(DEFAULT_PATH.into()).filter(|path: &PathBuf| path.exists()));
    let loaded = context::read(path.as_deref())?;
    let name = path.as_deref().map_or("the built-in configuration".into(), Path::to_string_lossy);
    // A key that nothing reads is a typing error, or a setting that its author believes in.
    if !loaded.unknown.is_empty() {
        let message = format!("{name}: unknown keys {}", loaded.unknown.join(", "));
        return Err(Refusal::new(Code::Usage, message, "remove or correct them"));
    }
    for root in &loaded.config.egress.extra_roots {
        let text = std::fs::read_to_string(root).unwrap_or_default();
        if !text.contains("-----BEGIN CERTIFICATE-----") {
            let message = format!("{name}: egress.extra_roots: {} has no certificate in PEM", root.display());
            return Err(Refusal::new(Code::Usage, message, "name a readable file that has one"));
        }
    }
    if json {
        return output::json(&serde_json::json!({ "file": path, "valid": true }));
    }
    show!("{name} is valid");
    Ok(())
}
