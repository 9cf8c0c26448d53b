//! Which hypervisor runs this host's machines, and why.

use crate::{
    Driver, Error,
    cloud_hypervisor::{self, CloudHypervisor, Rate},
    kvm,
    qemu::{self, Accel, Qemu},
};
use berth_config::{self as config, DriverChoice};
use std::{path::Path, sync::Arc};

/// A driver, and in a sentence why it was chosen.
pub struct Selected {
    pub driver: Arc<dyn Driver>,
    pub why: String,
    /// Without hardware virtualisation.
    pub emulated: bool,
}

/// As configured. `auto` is Cloud Hypervisor where its program is there and KVM
/// has run a guest, and QEMU everywhere else.
pub fn select(config: &config::Hypervisor) -> Result<Selected, Error> {
    match config.driver {
        DriverChoice::Qemu => {
            let qemu = find_qemu(config)?;
            let why = match (config.qemu.accel, kvm::prove()) {
                (config::Accel::Kvm, Err(error)) => {
                    format!("as configured; guests run with kvm, although it runs no ordinary guest: {error}")
                }
                _ => format!("as configured; guests run with {}", qemu.accelerator()),
            };
            let emulated = qemu.is_emulated();
            Ok(Selected { driver: Arc::new(qemu.start_ahead()), why, emulated })
        }
        DriverChoice::CloudHypervisor => {
            let driver = CloudHypervisor::detect(&settings(config))?;
            let why = match kvm::prove() {
                Ok(_) => "as configured; KVM runs guests".to_owned(),
                Err(error) => format!("as configured, although KVM runs no ordinary guest: {error}"),
            };
            Ok(Selected { driver: Arc::new(driver.start_ahead()), why, emulated: false })
        }
        DriverChoice::Auto => match best(config) {
            Ok(driver) => {
                let why = "its program is there and KVM runs guests".to_owned();
                Ok(Selected { driver: Arc::new(driver.start_ahead()), why, emulated: false })
            }
            Err(reason) => {
                let qemu = find_qemu(config)?;
                let why = format!(
                    "guests run with {}; cloud-hypervisor cannot be used: {reason}",
                    qemu.accelerator()
                );
                let emulated = qemu.is_emulated();
                Ok(Selected { driver: Arc::new(qemu.start_ahead()), why, emulated })
            }
        },
    }
}

/// Why machines must not be started: strangers would be kept apart by emulation alone, which
/// its own authors do not call a security boundary, and the operator has not said that this
/// is meant. On loopback nobody is a stranger to the host.
pub fn refuses_strangers(config: &config::Config, selected: &Selected) -> Option<String> {
    let beyond = config.gateway.listen.iter().find(|address| !address.ip().is_loopback())?;
    let meant = config.hypervisor.qemu.accel == config::Accel::Tcg;
    (selected.emulated && !meant).then(|| {
        let open = config.gateway.registration == config::Registration::Open;
        let who = if open { "anybody" } else { "other people" };
        format!(
            "guests are only emulated here (TCG), which is no security boundary, and {who} can log in on \
             {beyond}: use a host with KVM, or write accel = \"tcg\" into [hypervisor.qemu] if that is meant"
        )
    })
}

/// Which hypervisor a program is, and which version: as manifests would name them
/// with this configuration.
pub fn identify(config: &config::Hypervisor, binary: &Path) -> Result<(&'static str, String), Error> {
    match cloud_hypervisor::version(binary) {
        Ok(version) => Ok((cloud_hypervisor::NAME, format!("{version}+{}", cloud_hypervisor::LAYOUT))),
        Err(error @ Error::Spawn { .. }) => Err(error),
        Err(_) => Ok((qemu::NAME, Qemu::version_of(binary, &qemu_settings(config))?)),
    }
}

/// Cloud Hypervisor, or what is in its way.
fn best(config: &config::Hypervisor) -> Result<CloudHypervisor, String> {
    kvm::prove().map_err(|error| error.to_string())?;
    CloudHypervisor::detect(&settings(config)).map_err(|error| match error {
        Error::Refused { message, .. } => message,
        error => error.to_string(),
    })
}

fn find_qemu(config: &config::Hypervisor) -> Result<Qemu, Error> {
    Qemu::detect(&qemu_settings(config))
}

fn qemu_settings(config: &config::Hypervisor) -> qemu::Settings {
    let ours = &config.qemu;
    qemu::Settings {
        binary: ours.binary.clone(),
        firmware: ours.firmware.clone(),
        accel: match ours.accel {
            config::Accel::Auto => Accel::Auto,
            config::Accel::Kvm => Accel::Kvm,
            config::Accel::Tcg => Accel::Tcg,
        },
        kernel_arguments: ours.kernel_arguments.clone(),
        cpu_features: ours.cpu_features.clone(),
    }
}

fn settings(config: &config::Hypervisor) -> cloud_hypervisor::Settings {
    let ours = &config.cloud_hypervisor;
    cloud_hypervisor::Settings {
        binary: ours.binary.clone(),
        kernel_arguments: ours.kernel_arguments.clone(),
        disk: Rate { bytes: ours.disk_bytes, operations: ours.disk_operations },
        link: Rate { bytes: ours.link_bytes, operations: ours.link_operations },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_not_kept_apart_by_emulation_unless_that_is_written_out() {
        let default = berth_config::parse(berth_config::DEFAULT_TOML).unwrap().config;
        let selected =
            |emulated| Selected { driver: Arc::new(crate::fake::Fake::new()), why: String::new(), emulated };
        // As the README begins: on loopback, open, and whatever there is.
        assert_eq!(refuses_strangers(&default, &selected(true)), None);
        for registration in [config::Registration::Open, config::Registration::Closed] {
            let mut reached = default.clone();
            reached.gateway.listen.push("0.0.0.0:22".parse().unwrap());
            reached.gateway.registration = registration;
            let why = refuses_strangers(&reached, &selected(true)).unwrap();
            assert!(why.contains("0.0.0.0:22") && why.contains("accel = \"tcg\""), "{why}");
            assert_eq!(refuses_strangers(&reached, &selected(false)), None);
            reached.hypervisor.qemu.accel = config::Accel::Tcg;
            assert_eq!(refuses_strangers(&reached, &selected(true)), None);
        }
    }
}
