//! Cloud Hypervisor, where the environment names one.

use crate::{Scratch, Settings};
use anyhow::Result;
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

/// What is missing for cases on Cloud Hypervisor.
///
/// `BERTH_TEST_CLOUD_HYPERVISOR`: the program. `BERTH_TEST_CH_KERNEL`: a kernel
/// that this host's KVM can run. `BERTH_TEST_CH_ARGUMENTS`: what that kernel
/// wants on its command line. `BERTH_TEST_CH_PRELOAD`: a library for the program.
pub fn missing_for_cloud_hypervisor() -> Option<String> {
    let names = ["BERTH_TEST_CLOUD_HYPERVISOR", "BERTH_TEST_CH_KERNEL"];
    names.iter().find(|name| variable(name).is_none()).map(|name| format!("{name} is not set"))
}

/// Machines under Cloud Hypervisor. Their kernel may be a slow one.
pub fn cloud_hypervisor(scratch: &Scratch) -> Result<Settings> {
    let text = |name: &str| variable(name).unwrap_or_default();
    Ok(Settings::default()
        .set("hypervisor.driver", "cloud-hypervisor")
        .set("hypervisor.cloud_hypervisor.binary", program(scratch)?.display().to_string())
        .set("hypervisor.cloud_hypervisor.kernel_arguments", text("BERTH_TEST_CH_ARGUMENTS"))
        .set("image.kernel", text("BERTH_TEST_CH_KERNEL"))
        .set("machine.boot_timeout", "10m")
        .set("machine.memory", "256M")
        .set("idle.ready", vec!["256M"]))
}

/// The environment of a hypervisor is emptied, so a library goes in by a script.
fn program(scratch: &Scratch) -> Result<PathBuf> {
    let program = variable("BERTH_TEST_CLOUD_HYPERVISOR").unwrap_or_default();
    let Some(library) = variable("BERTH_TEST_CH_PRELOAD") else { return Ok(program.into()) };
    let script = scratch.directory("vmm")?.join("cloud-hypervisor");
    fs::write(&script, format!("#!/bin/sh\nLD_PRELOAD='{library}' exec '{program}' \"$@\"\n"))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
