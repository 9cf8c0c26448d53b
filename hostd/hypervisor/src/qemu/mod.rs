//! QEMU: the driver for hosts without usable KVM, and for those with it.
//!
//! A machine is `-M microvm` with its RAM in a file that QEMU maps shared, two
//! taps, a serial console into a log, and a control socket (QMP). Everything is
//! passed as a relative path or a descriptor; docs/drivers.md has the
//! measurements behind the choices.

mod arguments;
mod detect;
mod linked;
mod qmp;
mod start;
mod vm;

use crate::{Capabilities, Driver, Error, Known, Launch, Vm, cgroup::Groups, files, process::Process};
use detect::Accelerator;
use linked::Ahead;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

pub use detect::version;
pub use linked::LIBRARY;

/// As records, manifests and the configuration name it.
pub const NAME: &str = "qemu";
/// Counts our own changes to the devices a machine has: state that was saved
/// with others cannot be loaded.
pub(crate) const LAYOUT: u32 = 2;

/// How guests' code is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// KVM where it runs guests, else TCG.
    Auto,
    Kvm,
    /// Translation: works everywhere, some ten times slower.
    Tcg,
}

#[derive(Clone, Debug)]
pub struct Qemu {
    binary: PathBuf,
    firmware: PathBuf,
    version: String,
    accelerator: Accelerator,
    tsc_khz: u32,
    /// Whose members may use KVM, where that takes a group.
    device_group: Option<u32>,
    groups: Groups,
    /// Processes to become a machine's, where there are any.
    ahead: Option<Arc<Ahead>>,
}

impl Qemu {
    /// Looks at the host once, at start. Runs the program, so it blocks for
    /// some tens of milliseconds.
    pub fn detect(binary: &Path, firmware: &Path, accel: Accel) -> Result<Self, Error> {
        let (accelerator, device_group) = detect::accelerator(accel)?;
        let version = format!("{}+{LAYOUT}", detect::version(binary)?);
        Ok(Self {
            binary: files::find_program(binary).unwrap_or_else(|| binary.to_owned()),
            version,
            firmware: detect::firmware(binary, firmware)?,
            accelerator,
            tsc_khz: detect::tsc_khz()?,
            device_group,
            groups: Groups::prepare(),
            ahead: None,
        })
    }

    /// Has processes linked ahead, where the library for that is there. Of a script
    /// that starts the program, only the interpreter would be.
    pub fn link_ahead(mut self, library: &Path) -> Self {
        if library.is_file() && files::is_linked(&self.binary) {
            let ahead = Ahead::new(self.binary.clone(), library.to_owned(), self.groups.clone());
            ahead.fill();
            self.ahead = Some(ahead);
        }
        self
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

    async fn adopt(&self, known: Known) -> Result<Option<Arc<dyn Vm>>, Error> {
        let Some(process) = Process::find(known.pid, known.started)? else { return Ok(None) };
        match vm::QemuVm::adopt(self, process, known).await {
            Ok(vm) => Ok(Some(vm)),
            Err(Error::Gone(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
