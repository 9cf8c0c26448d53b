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
}

/// As configured. `auto` is Cloud Hypervisor where its program is there and KVM
/// has run a guest, and QEMU everywhere else.
pub fn select(config: &config::Hypervisor) -> Result<Selected, Error> {
    match config.driver {
        DriverChoice::Qemu => {
            let qemu = find_qemu(config)?;
            let why = format!("as configured; guests run with {}", qemu.accelerator());
            Ok(Selected { driver: Arc::new(qemu), why })
        }
        DriverChoice::CloudHypervisor => {
            let driver = CloudHypervisor::detect(&settings(config))?;
            let why = match kvm::prove() {
                Ok(_) => "as configured; KVM runs guests".to_owned(),
                Err(error) => format!("as configured, although KVM runs no ordinary guest: {error}"),
            };
            Ok(Selected { driver: Arc::new(driver), why })
        }
        DriverChoice::Auto => match best(config) {
            Ok(driver) => {
                let why = "its program is there and KVM runs guests".to_owned();
                Ok(Selected { driver: Arc::new(driver), why })
            }
            Err(reason) => {
                let qemu = find_qemu(config)?;
                let why = format!(
                    "guests run with {}; cloud-hypervisor cannot be used: {reason}",
                    qemu.accelerator()
                );
                Ok(Selected { driver: Arc::new(qemu), why })
            }
        },
    }
}

/// Which hypervisor a program is, and which version: as manifests name them.
pub fn identify(binary: &Path) -> Result<(&'static str, String), Error> {
    let named = |name, version, layout: u32| (name, format!("{version}+{layout}"));
    match cloud_hypervisor::version(binary) {
        Ok(version) => Ok(named(cloud_hypervisor::NAME, version, cloud_hypervisor::LAYOUT)),
        Err(error @ Error::Spawn { .. }) => Err(error),
        Err(_) => qemu::version(binary).map(|version| named(qemu::NAME, version, qemu::LAYOUT)),
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
    let accel = match config.qemu.accel {
        config::Accel::Auto => Accel::Auto,
        config::Accel::Kvm => Accel::Kvm,
        config::Accel::Tcg => Accel::Tcg,
    };
    let qemu = Qemu::detect(&config.qemu.binary, &config.qemu.firmware, accel)?;
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(qemu::LIBRARY)));
    Ok(match beside {
        Some(library) => qemu.link_ahead(&library),
        None => qemu,
    })
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
