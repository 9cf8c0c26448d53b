//! Fault points: places where a test may have hostd die as SIGKILL would.
//!
//! `BERTH_FAULT=NAME` names the one that strikes. Without it a point costs a
//! load of one word.

use std::sync::OnceLock;

/// Every point there is, for the test that walks them.
pub const POINTS: &[&str] = &[
    "capture.frozen",
    "capture.saved",
    "capture.shared",
    "fork.made",
    "restore.aside",
    "restore.set",
    "sleep.cloned",
    "sleep.ended",
    "sleep.frozen",
    "sleep.intent",
    "sleep.moved",
    "sleep.saved",
    "template.saved",
    "template.tried",
    "wake.greeted",
    "wake.intent",
    "wake.parted",
    "wake.powered",
    "wake.thawed",
];

/// Those of a new master key, which no machine passes.
pub const KEY_POINTS: &[&str] =
    &["rekey.kept", "rekey.made", "rekey.mirrored", "rekey.sealed", "rekey.switched"];

static CHOSEN: OnceLock<Option<String>> = OnceLock::new();

pub fn point(name: &'static str) {
    debug_assert!(POINTS.contains(&name) || KEY_POINTS.contains(&name), "{name} is not in the list");
    let chosen = CHOSEN.get_or_init(|| std::env::var("BERTH_FAULT").ok());
    if chosen.as_deref() == Some(name) {
        tracing::warn!(name, "a fault was asked for");
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
    }
}
