//! A driver under test, or what is missing to test it.

use super::template::Template;
use anyhow::{Context as _, Result, ensure};
use berth_hypervisor::{
    Driver, Error,
    cloud_hypervisor::{CloudHypervisor, Rate, Settings},
    fake::Fake,
    qemu::{Accel, LIBRARY, Qemu},
};
use berth_types::ByteSize;
use std::{
    ffi::OsString,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

#[derive(Clone, Debug)]
pub enum Subject {
    Fake,
    Qemu { image: PathBuf, template: Template },
    CloudHypervisor { image: PathBuf, kernel: PathBuf, settings: Settings, template: Template },
}

impl Subject {
    pub fn driver(&self) -> Result<Arc<dyn Driver>> {
        Ok(match self {
            Self::Fake => Arc::new(Fake::new()),
            Self::Qemu { .. } => Arc::new(qemu()?),
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
            Self::CloudHypervisor { kernel, .. } => Some(kernel.clone()),
            _ => None,
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
            Self::Fake => "fake",
            Self::Qemu { .. } => "qemu",
            Self::CloudHypervisor { .. } => "cloud-hypervisor",
        }
    }

    /// Removes what the suite itself made.
    pub fn clear(&self) {
        if std::env::var_os("BERTH_TEST_CH_PRELOAD").is_some()
            && let Self::CloudHypervisor { settings, .. } = self
        {
            let _ = std::fs::remove_file(&settings.binary);
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

fn qemu() -> Result<Qemu, Error> {
    Qemu::detect(Path::new("qemu-system-x86_64"), Path::new("qboot.rom"), Accel::Auto)
}

/// The same with processes that are linked ahead; for that, `make build` has to have
/// been run.
pub fn linking_qemu() -> Result<Arc<dyn Driver>> {
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(3).context("no target directory")?;
    let library = target.join("bin").join(LIBRARY);
    ensure!(library.exists(), "no {}: run `make build`", library.display());
    Ok(Arc::new(qemu()?.link_ahead(&library)))
}

/// QEMU with an image, or what is missing.
pub fn find_qemu() -> Result<Subject, String> {
    let image = find_image(&["vmlinux", "initrd", "disk"])?;
    qemu().map_err(|error| error.to_string())?;
    Ok(Subject::Qemu { image, template: Template::default() })
}

/// Cloud Hypervisor as the environment names it, or what is missing.
///
/// `BERTH_TEST_CLOUD_HYPERVISOR`: the program. `BERTH_TEST_CH_KERNEL`: a kernel
/// that this host's KVM can run. `BERTH_TEST_CH_ARGUMENTS`: what that kernel
/// wants on its command line. `BERTH_TEST_CH_PRELOAD`: a library for the program.
pub fn find_cloud_hypervisor() -> Result<Subject, String> {
    let program = variable("BERTH_TEST_CLOUD_HYPERVISOR")?;
    let kernel = PathBuf::from(variable("BERTH_TEST_CH_KERNEL")?);
    let image = find_image(&["initrd", "disk"])?;
    let settings = Settings {
        binary: preloaded(program.into()).map_err(|error| format!("{error:#}"))?,
        kernel_arguments: variable("BERTH_TEST_CH_ARGUMENTS").map_or_else(|_| String::new(), text),
        ..Settings::default()
    };
    CloudHypervisor::detect(&settings).map_err(|error| error.to_string())?;
    Ok(Subject::CloudHypervisor { image, kernel, settings, template: Template::default() })
}

fn variable(name: &str) -> Result<OsString, String> {
    std::env::var_os(name).filter(|value| !value.is_empty()).ok_or_else(|| format!("{name} is not set"))
}

fn text(value: OsString) -> String {
    value.to_string_lossy().into_owned()
}

/// The environment of a hypervisor is emptied, so a library goes in by a script.
fn preloaded(program: PathBuf) -> Result<PathBuf> {
    let Ok(library) = variable("BERTH_TEST_CH_PRELOAD") else { return Ok(program) };
    let script = std::env::temp_dir().join(format!("berth-contract-vmm-{}", std::process::id()));
    let (library, program) = (text(library), program.display());
    std::fs::write(&script, format!("#!/bin/sh\nLD_PRELOAD='{library}' exec '{program}' \"$@\"\n"))?;
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755))?;
    Ok(script)
}

fn find_image(files: &[&str]) -> Result<PathBuf, String> {
    let image = std::env::var_os("BERTH_TEST_IMAGE")
        .map_or_else(|| PathBuf::from("/var/lib/berth/images/debian"), PathBuf::from);
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".to_owned());
    }
    match files.iter().find(|file| !image.join(file).exists()) {
        Some(file) => Err(format!("no {}: run `berth image build`", image.join(file).display())),
        None => Ok(image),
    }
}
