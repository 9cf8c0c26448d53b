//! Cloud Hypervisor, where the environment names one.

use crate::Settings;

/// What is missing for cases on Cloud Hypervisor.
///
/// `BERTH_TEST_CLOUD_HYPERVISOR`: the program. `BERTH_TEST_CH_KERNEL`: a kernel
/// that this host's KVM can run. `BERTH_TEST_CH_ARGUMENTS`: what that kernel
/// wants on its command line.
pub fn missing_for_cloud_hypervisor() -> Option<String> {
    let names = ["BERTH_TEST_CLOUD_HYPERVISOR", "BERTH_TEST_CH_KERNEL"];
    names.iter().find(|name| variable(name).is_none()).map(|name| format!("{name} is not set"))
}

/// Machines under Cloud Hypervisor. Their kernel may be a slow one.
pub fn cloud_hypervisor() -> Settings {
    let text = |name: &str| variable(name).unwrap_or_default();
    Settings::default()
        .set("hypervisor.driver", "cloud-hypervisor")
        .set("hypervisor.cloud_hypervisor.binary", text("BERTH_TEST_CLOUD_HYPERVISOR"))
        .set("hypervisor.cloud_hypervisor.kernel_arguments", text("BERTH_TEST_CH_ARGUMENTS"))
        .set("image.kernel", text("BERTH_TEST_CH_KERNEL"))
        .set("machine.boot_timeout", "10m")
        .set("machine.memory", "256M")
        .set("idle.ready", vec!["256M"])
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
