//! Hypervisors behind one small contract.
//!
//! A [`Driver`] starts a hypervisor on a machine's directory, or finds one
//! again that outlived hostd; a [`Vm`] is that process. What the guest does is
//! not its business: it knows processes, vCPUs and device state, not shells.
//!
//! Every path that a hypervisor is given is relative to the machine's
//! directory, which is its working directory, so that a copy of the directory
//! is a copy of the machine.

pub mod cgroup;
pub mod cloud_hypervisor;
pub mod fake;
mod files;
pub mod jail;
pub mod kvm;
mod pausing;
mod process;
pub mod qemu;
pub mod select;
mod spawn;
mod supervise;
pub mod tasks;
mod verdict;
mod wire;

use berth_types::{ByteSize, MachineId};
use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc};
use tokio::sync::oneshot;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{program} cannot be started")]
    Spawn {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{operation} failed")]
    Io {
        operation: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// The hypervisor answered, and the answer was no.
    #[error("{operation} was refused by the hypervisor: {message}")]
    Refused { operation: &'static str, message: String },
    #[error("{operation} was not answered within {limit:?}")]
    Timeout { operation: &'static str, limit: std::time::Duration },
    #[error("the hypervisor is gone: {0}")]
    Gone(Exit),
}

/// How a hypervisor's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The guest powered off, or hostd asked the process to quit.
    Clean,
    /// The guest rebooted. The process ends, for a boot is a new start.
    Reboot,
    /// The guest's kernel panicked.
    Panic,
    Status(i32),
    Signal(i32),
    /// An adopted process is nobody's child: it is gone, nobody knows how.
    Unknown,
}

/// What a driver can do, so that nobody has to ask which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Device state can be saved while RAM stays in its file.
    pub save: bool,
    /// A machine that is up can be frozen and continued in place.
    pub pause: bool,
    /// Guests' code is translated as they run it, by more than one core: what they
    /// have run on an idle CPU is faster on another.
    pub rehearse: bool,
}

/// Everything a start needs. Descriptors are consumed by it.
#[derive(Debug)]
pub struct Launch {
    pub id: MachineId,
    /// The machine's directory: has `disk`, gets `ram` and `console.log`.
    pub directory: PathBuf,
    /// Where the hypervisor's control socket goes: short, and gone with a reboot.
    pub socket: PathBuf,
    pub cpus: u32,
    pub memory: ByteSize,
    /// What its disk has or grows to while it starts: a template's may be smaller.
    pub disk: ByteSize,
    /// The user and group that the process runs as.
    pub uid: u32,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub netns: Arc<OwnedFd>,
    pub ctl_tap: OwnedFd,
    pub eth_tap: OwnedFd,
    pub origin: Origin,
    /// Told when the saved memory is in `ram`, which has its size from the
    /// beginning: nothing reads it before, and dropped, the start fails.
    pub laid_out: Option<oneshot::Receiver<()>>,
}

impl Launch {
    pub(crate) fn take_laid_out(&mut self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let told = self.laid_out.take();
        async move {
            let Some(told) = told else { return Ok(()) };
            told.await.map_err(|_| Error::Io {
                operation: "laying out the machine's memory",
                source: std::io::ErrorKind::Interrupted.into(),
            })
        }
    }
}

/// Where a machine's RAM and devices come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From its disk, as a computer does.
    Boot,
    /// From `ram` and `state` in its directory. The vCPUs stay stopped until
    /// [`Vm::resume`].
    Saved,
}

/// What was written down of a process when it was started.
#[derive(Clone, Debug)]
pub struct Known {
    pub id: MachineId,
    pub pid: i32,
    /// From /proc/PID/stat, against reused pids.
    pub started: u64,
    pub directory: PathBuf,
    pub socket: PathBuf,
}

#[async_trait::async_trait]
pub trait Driver: Send + Sync + 'static {
    /// As records and `info` name it: `qemu`, `cloud-hypervisor`, `fake`.
    fn name(&self) -> &'static str;

    /// Of the program behind it; device state is tied to it.
    fn version(&self) -> &str;

    fn capabilities(&self) -> Capabilities;

    /// Whether device state that this driver in this version wrote can be
    /// loaded. Neither hypervisor promises that for any version but its own.
    fn restores(&self, driver: &str, version: &str) -> bool {
        (driver, version) == (self.name(), self.version())
    }

    /// Starts a hypervisor. When this returns, its control socket answers; the
    /// guest may still be booting.
    async fn start(&self, launch: Launch) -> Result<Arc<dyn Vm>, Error>;

    /// Finds a hypervisor again, of a machine with this user id. `None`: that process is
    /// gone, or it had not come so far that it could go on, and was ended. One that is not
    /// confined as this version starts them is ended too, and refused.
    async fn adopt(&self, known: Known, uid: u32) -> Result<Option<Arc<dyn Vm>>, Error>;
}

#[async_trait::async_trait]
pub trait Vm: Send + Sync {
    fn pid(&self) -> i32;

    /// The process's start time, for [`Known`].
    fn started(&self) -> u64;

    /// Stops the vCPUs. Memory stays where it is.
    async fn pause(&self) -> Result<(), Error>;

    async fn resume(&self) -> Result<(), Error>;

    /// Writes device state to `state` in the machine's directory. Only when
    /// paused; RAM is in its file already.
    async fn save(&self) -> Result<(), Error>;

    /// Makes the disk larger, and tells the guest.
    async fn resize_disk(&self, size: ByteSize) -> Result<(), Error>;

    /// Ends the process at once and waits until it is gone, whatever the guest says.
    async fn kill(&self) -> Result<(), Error>;

    /// Resolves when the process is gone; at once if it is already.
    async fn wait(&self) -> Exit;

    /// CPU time that the process has used, in nanoseconds.
    fn cpu_time(&self) -> u64;
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Clean => f.write_str("it powered off"),
            Self::Reboot => f.write_str("it rebooted"),
            Self::Panic => f.write_str("its kernel panicked"),
            Self::Status(code) => write!(f, "it ended with status {code}"),
            Self::Signal(signal) => write!(f, "it was killed by signal {signal}"),
            Self::Unknown => f.write_str("it ended"),
        }
    }
}

/// Ends a hypervisor that may not answer any more, or whose driver is no longer
/// the one that is configured. Fine if it is gone.
pub async fn end(known: &Known) -> Result<(), Error> {
    let group = cgroup::Groups::find().of_process(known.pid);
    if let Some(process) = process::Process::find(known.pid, known.started)? {
        process.kill().await?;
        group.as_deref().map(files::discard);
    }
    files::discard(&known.socket);
    files::discard(&cloud_hypervisor::events_path(&known.socket));
    Ok(())
}
