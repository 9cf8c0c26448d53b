//! Cloud Hypervisor: the driver for hosts with KVM.
//!
//! A machine's RAM is a memory zone on the file `ram`, mapped shared, so that a
//! snapshot writes devices only and a restore maps what is there. The process
//! is driven over its REST socket; taps, that socket and the pipe of its events
//! are descriptors that it is handed. docs/drivers.md has the measurements
//! behind the choices.

mod api;
mod config;
mod detect;
mod events;
pub mod landlock;
mod request;
mod start;
mod state;
mod vm;

pub use detect::{ACCEPTED, accepted, version};
pub(crate) use events::path as events_path;

use crate::{
    Capabilities, Driver, Error, Known, Launch, Vm,
    jail::{Jail, wire::Room},
    kvm,
    process::Process,
    spawn,
};
use berth_types::ByteSize;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// What an operator decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The program, by name or path.
    pub binary: PathBuf,
    /// Further words on guests' kernel command line.
    pub kernel_arguments: String,
    pub disk: Rate,
    /// Of each of the two links.
    pub link: Rate,
}

/// What a device may move in a second. 0: as much as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    pub bytes: ByteSize,
    pub operations: u64,
}

/// What a process of it opens of the host's devices.
const DEVICES: &[&str] = &["/dev/null", "/dev/urandom", "/dev/kvm"];

#[derive(Clone, Debug)]
pub struct CloudHypervisor {
    binary: PathBuf,
    version: String,
    settings: Settings,
    /// Whose members may use KVM, where that takes a group.
    device_group: Option<u32>,
    landlock: bool,
    jail: Jail,
}

impl CloudHypervisor {
    /// Looks at the host once, at start. It does not ask whether KVM runs
    /// ordinary guests: see [`kvm::prove`].
    pub fn detect(settings: &Settings) -> Result<Self, Error> {
        let binary = detect::find(&settings.binary)?;
        let version = format!("{}+{LAYOUT}", detect::accepted(&binary)?);
        let access = kvm::access()
            .map_err(|error| Error::Refused { operation: "looking for KVM", message: error.to_string() })?;
        Ok(Self {
            binary: binary.clone(),
            version,
            settings: settings.clone(),
            device_group: access.group,
            landlock: landlock::is_there(),
            jail: Jail::new(Room::of(&binary, &[], DEVICES)?)?,
        })
    }

    /// Has jails made before a machine needs one.
    pub fn start_ahead(mut self) -> Self {
        self.jail.start_ahead();
        self
    }

    pub fn binary(&self) -> &Path {
        &self.binary
    }
}

#[async_trait::async_trait]
impl Driver for CloudHypervisor {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { save: true, pause: true, rehearse: false }
    }

    async fn start(&self, launch: Launch) -> Result<Arc<dyn Vm>, Error> {
        Ok(vm::CloudVm::start(self.clone(), launch).await?)
    }

    async fn adopt(&self, known: Known, uid: u32) -> Result<Option<Arc<dyn Vm>>, Error> {
        let Some(process) = Process::find(known.pid, known.started)? else { return Ok(None) };
        spawn::confined_or_ended(&process, &known, uid, self.device_group).await?;
        match vm::CloudVm::adopt(self, process, known).await {
            Ok(vm) => Ok(Some(vm)),
            Err(Error::Gone(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// As records, manifests and the configuration name it.
pub const NAME: &str = "cloud-hypervisor";
/// Counts our own changes to the devices a machine has: state that was saved
/// with others cannot be loaded.
pub(crate) const LAYOUT: u32 = 1;
