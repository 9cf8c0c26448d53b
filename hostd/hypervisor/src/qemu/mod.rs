//! QEMU: the driver for hosts without usable KVM, and for those with it.
//!
//! A machine is `-M microvm` with its RAM in a file that QEMU maps shared, two
//! taps, a serial console into a log, and a control socket (QMP). Everything is
//! passed as a relative path or a descriptor; docs/drivers.md has the
//! measurements behind the choices.

mod arguments;
mod detect;
mod qmp;
mod realtime;
mod start;
mod vm;

use crate::{Capabilities, Driver, Error, Known, Launch, Vm, files, jail::Jail, process::Process, spawn};
use detect::Accelerator;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

pub use detect::version;

/// As records, manifests and the configuration name it.
pub const NAME: &str = "qemu";
/// Counts our own changes to the devices a machine has: state that was saved
/// with others cannot be loaded.
const LAYOUT: u32 = 2;

/// How guests' code is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// KVM where it runs guests, else TCG.
    Auto,
    Kvm,
    /// Translation: works everywhere, some ten times slower.
    Tcg,
}

/// What an operator decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The program, by name or path.
    pub binary: PathBuf,
    /// Firmware for `-M microvm`, by name or path.
    pub firmware: PathBuf,
    pub accel: Accel,
    /// Further words on guests' kernel command line.
    pub kernel_arguments: String,
    /// What guests' CPU has or lacks beside its model.
    pub cpu_features: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            binary: "qemu-system-x86_64".into(),
            firmware: "qboot.rom".into(),
            accel: Accel::Auto,
            kernel_arguments: String::new(),
            cpu_features: String::new(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Qemu {
    settings: Settings,
    binary: PathBuf,
    firmware: PathBuf,
    version: String,
    accelerator: Accelerator,
    tsc_khz: u32,
    /// Whose members may use KVM, where that takes a group.
    device_group: Option<u32>,
    jail: Jail,
    /// At real-time priority, of boots.
    boots: realtime::Turns,
}

impl Qemu {
    /// Looks at the host once, at start. Runs the program, so it blocks for
    /// some tens of milliseconds.
    pub fn detect(settings: &Settings) -> Result<Self, Error> {
        let (accelerator, device_group) = detect::accelerator(settings.accel)?;
        let version = detect::whole_version(&detect::version(&settings.binary)?, accelerator, settings);
        let firmware = detect::firmware(&settings.binary, &settings.firmware)?;
        let binary = files::find_program(&settings.binary).unwrap_or_else(|| settings.binary.clone());
        Ok(Self {
            settings: settings.clone(),
            jail: Jail::new(detect::room(&binary, &firmware, accelerator)?)?,
            binary,
            version,
            firmware,
            accelerator,
            tsc_khz: detect::tsc_khz()?,
            device_group,
            boots: realtime::Turns::for_this_host(),
        })
    }

    /// Has jails made before a machine needs one.
    pub fn start_ahead(mut self) -> Self {
        self.jail.start_ahead();
        self
    }

    /// The version that another program would have with these settings.
    pub fn version_of(binary: &Path, settings: &Settings) -> Result<String, Error> {
        let (accelerator, _) = detect::accelerator(settings.accel)?;
        Ok(detect::whole_version(&detect::version(binary)?, accelerator, settings))
    }

    /// Without hardware virtualisation.
    pub fn is_emulated(&self) -> bool {
        self.accelerator == Accelerator::Tcg
    }

    /// For `doctor` and the log: which way guests' code is run.
    pub fn accelerator(&self) -> &'static str {
        match self.accelerator {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }
}

#[async_trait::async_trait]
impl Driver for Qemu {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn capabilities(&self) -> Capabilities {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let rehearse = self.accelerator == Accelerator::Tcg && cores > 1;
        Capabilities { save: true, pause: true, rehearse }
    }

    async fn start(&self, launch: Launch) -> Result<Arc<dyn Vm>, Error> {
        Ok(vm::QemuVm::start(self.clone(), launch).await?)
    }

    async fn adopt(&self, known: Known, uid: u32) -> Result<Option<Arc<dyn Vm>>, Error> {
        let Some(process) = Process::find(known.pid, known.started)? else { return Ok(None) };
        spawn::confined_or_ended(&process, &known, uid, self.device_group).await?;
        match vm::QemuVm::adopt(self, process, known).await {
            Ok(vm) => Ok(Some(vm)),
            Err(Error::Gone(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
