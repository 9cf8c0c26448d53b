//! Which hypervisor will run the machines, and what would be better.

use super::{Finding, Verdict, find};
use berth_config::{Accel, Config, DriverChoice, Hypervisor};
use berth_hypervisor::{
    Error,
    cgroup::Groups,
    cloud_hypervisor::{self, landlock},
    kvm, qemu, select,
};

pub fn findings(whole: &Config) -> Vec<Finding> {
    let config = &whole.hypervisor;
    let mut findings = vec![cloud_hypervisor(config), qemu(config), kvm(config), confinement(), limits()];
    findings.extend(used(whole));
    findings
}

/// What is missing is missed only by those who asked for it.
fn unless_wanted(wanted: bool) -> Verdict {
    if wanted { Verdict::Missing } else { Verdict::Note }
}

fn cloud_hypervisor(config: &Hypervisor) -> Finding {
    const WHAT: &str = "cloud-hypervisor";
    let binary = &config.cloud_hypervisor.binary;
    let wanted = config.driver == DriverChoice::CloudHypervisor;
    match cloud_hypervisor::accepted(binary) {
        Ok(version) => {
            let path = find(binary).unwrap_or_else(|| binary.clone());
            Finding::new(WHAT, Verdict::Good, format!("{}, version {version}", path.display()))
        }
        Err(error) => Finding::new(WHAT, unless_wanted(wanted), words(error)),
    }
}

fn qemu(config: &Hypervisor) -> Finding {
    let binary = &config.qemu.binary;
    match qemu::version(binary) {
        Ok(version) => {
            let path = find(binary).unwrap_or_else(|| binary.clone());
            Finding::new("qemu", Verdict::Good, format!("{}, version {version}", path.display()))
        }
        Err(_) => {
            let wanted = config.driver != DriverChoice::CloudHypervisor;
            let missing = format!("{} is not there: install qemu-system-x86", binary.display());
            Finding::new("qemu", unless_wanted(wanted), missing)
        }
    }
}

/// By running a guest.
fn kvm(config: &Hypervisor) -> Finding {
    let wanted = config.driver != DriverChoice::CloudHypervisor && config.qemu.accel == Accel::Kvm;
    match kvm::prove() {
        Ok(_) => Finding::new("kvm", Verdict::Good, "it ran a guest"),
        Err(error) => Finding::new("kvm", unless_wanted(wanted), error.to_string()),
    }
}

fn confinement() -> Finding {
    if landlock::is_there() {
        Finding::new("landlock", Verdict::Good, "hypervisors are kept from other files")
    } else {
        let detail = "not in this kernel: with Linux 6.2 or later cloud-hypervisor is confined more tightly";
        Finding::new("landlock", Verdict::Note, detail)
    }
}

fn limits() -> Finding {
    let limits = Groups::find().limits();
    if limits.is_empty() {
        let detail =
            "no cgroup2 controllers: a machine's CPUs and memory are limited by its hypervisor alone";
        Finding::new("limits", Verdict::Note, detail)
    } else {
        Finding::new("limits", Verdict::Good, format!("cgroup2 with {}", limits.join(", ")))
    }
}

fn used(config: &Config) -> Vec<Finding> {
    const WHAT: &str = "will be used";
    match select::select(&config.hypervisor) {
        Ok(selected) => {
            let (driver, why) = (&selected.driver, &selected.why);
            let used = format!("{} {}: {why}", driver.name(), driver.version());
            vec![Finding::new(WHAT, Verdict::Good, used), isolation(config, &selected)]
        }
        Err(error) => vec![Finding::new(WHAT, Verdict::Missing, words(error))],
    }
}

/// How well machines are kept apart.
fn isolation(config: &Config, selected: &select::Selected) -> Finding {
    const WHAT: &str = "isolation";
    const EMULATED: &str =
        "emulation (TCG) is no security boundary, says QEMU: have only machines here whose users you trust";
    match select::refuses_strangers(config, selected) {
        Some(why) => Finding::new(WHAT, Verdict::Missing, why),
        None if selected.emulated => Finding::new(WHAT, Verdict::Note, EMULATED),
        None => Finding::new(WHAT, Verdict::Good, "hardware virtualisation"),
    }
}

fn words(error: Error) -> String {
    match error {
        Error::Refused { message, .. } => message,
        Error::Spawn { program, source } => format!("{program} cannot be started ({source})"),
        error => error.to_string(),
    }
}
