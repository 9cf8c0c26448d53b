//! `berth version`.

use crate::output;
use berth_types::Refusal;

pub fn run(json: bool) -> Result<(), Refusal> {
    let version = env!("CARGO_PKG_VERSION");
    if json {
        return output::json(&serde_json::json!({ "version": version, "api": berth_api::FORMAT_VERSION }));
    }
    show!("berth {version}");
    Ok(())
}
