//! A driver under test, or what is missing to test it.

use super::template::Template;
use anyhow::Result;
use berth_hypervisor::{
    Driver,
    cloud_hypervisor::{CloudHypervisor, Rate, Settings},
    fake::Fake,
    kvm,
    qemu::{self, Accel, Qemu},
};
use berth_types::ByteSize;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

pub const FAKE: &str = "fake";
pub const QEMU_TCG: &str = "qemu-tcg";
pub const QEMU_KVM: &str = "qemu-kvm";
pub const CLOUD_HYPERVISOR: &str = "cloud-hypervisor";

#[derive(Clone, Debug)]
pub enum Subject {
    Fake,
    Qemu { image: PathBuf, kernel: Option<PathBuf>, settings: qemu::Settings, template: Template },
    CloudHypervisor { image: PathBuf, kernel: PathBuf, settings: Settings, template: Template },
}

impl Subject {
    pub fn driver(&self) -> Result<Arc<dyn Driver>> {
        Ok(match self {
            Self::Fake => Arc::new(Fake::new()),
            Self::Qemu { settings, .. } => Arc::new(Qemu::detect(settings)?),
            Self::CloudHypervisor { settings, .. } => Arc::new(CloudHypervisor::detect(settings)?),
        })
    }

    /// `None`: a driver without guests.
    pub fn image(&self) -> Option<&Path> {
        match self {
            Self::Fake => None,
            Self::Qemu { image, .. } | Self::CloudHypervisor { image, .. } => Some(image),
        }
    }

    /// Another kernel than the image's.
    pub fn kernel(&self) -> Option<PathBuf> {
        match self {
            Self::Fake => None,
            Self::Qemu { kernel, .. } => kernel.clone(),
            Self::CloudHypervisor { kernel, .. } => Some(kernel.clone()),
        }
    }

    /// A booted machine to go on from.
    pub fn template(&self) -> Result<Option<&Path>> {
        match self {
            Self::Fake => Ok(None),
            Self::Qemu { template, .. } | Self::CloudHypervisor { template, .. } => {
                template.of(self).map(Some)
            }
        }
    }

    /// The same driver with a disk that is slowed down; only where it can be.
    pub fn with_slow_disk(&self, bytes: ByteSize) -> Option<Self> {
        let Self::CloudHypervisor { image, kernel, settings, template } = self else { return None };
        let disk = Rate { bytes, operations: 0 };
        let settings = Settings { disk, ..settings.clone() };
        let (image, kernel, template) = (image.clone(), kernel.clone(), template.clone());
        Some(Self::CloudHypervisor { image, kernel, settings, template })
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Fake => FAKE,
            Self::Qemu { settings, .. } if settings.accel == Accel::Kvm => QEMU_KVM,
            Self::Qemu { .. } => QEMU_TCG,
            Self::CloudHypervisor { .. } => CLOUD_HYPERVISOR,
        }
    }

    /// The same driver, with no template to refer back to.
    pub fn alone(&self) -> Self {
        let mut alone = self.clone();
        if let Self::Qemu { template, .. } | Self::CloudHypervisor { template, .. } = &mut alone {
            *template = Template::default();
        }
        alone
    }

    /// Which program it is, for the record.
    pub fn version(&self) -> String {
        match self.driver() {
            Ok(driver) => format!("{} {}", driver.name(), driver.version()),
            Err(error) => format!("{error:#}"),
        }
    }
}

fn tcg() -> qemu::Settings {
    qemu::Settings { accel: Accel::Tcg, ..qemu::Settings::default() }
}

/// QEMU under TCG with an image, or what is missing.
pub fn find_qemu_tcg() -> Result<Subject, String> {
    let image = find_image(&["vmlinux", "initrd", "disk"])?;
    Qemu::detect(&tcg()).map_err(|error| error.to_string())?;
    Ok(Subject::Qemu { image, kernel: None, settings: tcg(), template: Template::default() })
}

/// QEMU under KVM, or what is missing.
///
/// Where KVM runs ordinary guests it takes the image's kernel. Elsewhere, and if they
/// are set, `BERTH_TEST_CH_KERNEL` and `BERTH_TEST_CH_ARGUMENTS` are what Cloud
/// Hypervisor's cases take too; `BERTH_TEST_KVM_CPU_FEATURES` is what this host's KVM
/// wants of `-cpu host`.
pub fn find_qemu_kvm() -> Result<Subject, String> {
    let kernel = variable("BERTH_TEST_CH_KERNEL").map(PathBuf::from);
    let emulated = match (kvm::prove(), &kernel) {
        (Ok(_), _) => false,
        (Err(kvm::Unusable::Emulated { .. }), Ok(_)) => true,
        (Err(unusable @ kvm::Unusable::Emulated { .. }), Err(missing)) => {
            return Err(format!("{missing}, and {unusable}"));
        }
        (Err(unusable), _) => return Err(unusable.to_string()),
    };
    let kernel = kernel.ok();
    let files = if kernel.is_some() { &["initrd", "disk"][..] } else { &["vmlinux", "initrd", "disk"] };
    let image = find_image(files)?;
    // A nested PVM says that the CPU has the register of these, and does not let it be
    // set; and a triple fault of a kernel that it interprets ends nothing. A microvm has
    // no keyboard controller, of which the words for Cloud Hypervisor may speak.
    let (features, words) = if emulated { ("-arch-capabilities", " reboot=a") } else { ("", "") };
    let settings = qemu::Settings {
        accel: Accel::Kvm,
        kernel_arguments: optional("BERTH_TEST_CH_ARGUMENTS").unwrap_or_default() + words,
        cpu_features: optional("BERTH_TEST_KVM_CPU_FEATURES").unwrap_or_else(|| features.to_owned()),
        ..qemu::Settings::default()
    };
    Qemu::detect(&settings).map_err(|error| error.to_string())?;
    Ok(Subject::Qemu { image, kernel, settings, template: Template::default() })
}

/// Cloud Hypervisor as the environment names it, or what is missing.
///
/// `BERTH_TEST_CLOUD_HYPERVISOR`: the program. `BERTH_TEST_CH_KERNEL`: a kernel
/// that this host's KVM can run. `BERTH_TEST_CH_ARGUMENTS`: what that kernel
/// wants on its command line.
pub fn find_cloud_hypervisor() -> Result<Subject, String> {
    let program = variable("BERTH_TEST_CLOUD_HYPERVISOR")?;
    let kernel = PathBuf::from(variable("BERTH_TEST_CH_KERNEL")?);
    let image = find_image(&["initrd", "disk"])?;
    let settings = Settings {
        binary: program.into(),
        kernel_arguments: optional("BERTH_TEST_CH_ARGUMENTS").unwrap_or_default(),
        ..Settings::default()
    };
    CloudHypervisor::detect(&settings).map_err(|error| error.to_string())?;
    Ok(Subject::CloudHypervisor { image, kernel, settings, template: Template::default() })
}

fn variable(name: &str) -> Result<OsString, String> {
    std::env::var_os(name).filter(|value| !value.is_empty()).ok_or_else(|| format!("{name} is not set"))
}

fn optional(name: &str) -> Option<String> {
    variable(name).map(|value| value.to_string_lossy().into_owned()).ok()
}

/// Like the real ones it gives a machine's files to a user of their own.
pub fn find_fake() -> Result<Subject, String> {
    needs_root().map(|()| Subject::Fake)
}

fn needs_root() -> Result<(), String> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err("needs root".to_owned()) }
}

fn find_image(files: &[&str]) -> Result<PathBuf, String> {
    let image = std::env::var_os("BERTH_TEST_IMAGE")
        .map_or_else(|| PathBuf::from("/var/lib/berth/images/debian"), PathBuf::from);
    needs_root()?;
    match files.iter().find(|file| !image.join(file).exists()) {
        Some(file) => Err(format!("no {}: run `berth image build`", image.join(file).display())),
        None => Ok(image),
    }
}
