//! A machine's directory, and the promise that nothing of it stays behind.

use super::{guest::Guest, net::Net};
use anyhow::{Context, Result, ensure};
use berth_hypervisor::{Driver, Known, Launch, Origin, Vm, fake::Fake, qemu};
use berth_types::{ByteSize, MachineId};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    os::{fd::OwnedFd, unix::fs::chown},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

/// No user of this host.
const UID: u32 = 765_432;
pub const MEMORY: u64 = 256 << 20;

/// A driver under test.
#[derive(Clone, Debug)]
pub enum Subject {
    Fake,
    Qemu { image: PathBuf },
}

impl Subject {
    pub fn driver(&self) -> Result<Arc<dyn Driver>> {
        Ok(match self {
            Self::Fake => Arc::new(Fake::new()),
            Self::Qemu { .. } => Arc::new(detect()?),
        })
    }
}

pub fn detect() -> Result<qemu::Qemu, berth_hypervisor::Error> {
    qemu::Qemu::detect(Path::new("qemu-system-x86_64"), Path::new("qboot.rom"), qemu::Accel::Auto)
}

pub struct Machine {
    subject: Subject,
    pub id: MachineId,
    pub directory: PathBuf,
    pub driver: Arc<dyn Driver>,
    started: Mutex<Vec<OwnedFd>>,
}

/// A start that went well.
pub struct Running {
    pub vm: Arc<dyn Vm>,
    /// `None`: a driver without guests.
    pub guest: Option<Guest>,
}

impl Machine {
    pub fn new(subject: &Subject) -> Result<Self> {
        let id = MachineId::random();
        let directory = std::env::temp_dir().join(format!("berth-contract-{id}"));
        std::fs::create_dir(&directory)?;
        let driver = subject.driver()?;
        let machine = Self { subject: subject.clone(), id, directory, driver, started: Mutex::default() };
        let disk = machine.directory.join("disk");
        match subject {
            Subject::Fake => std::fs::write(&disk, "")?,
            Subject::Qemu { image } => {
                let mut copy = Command::new("cp");
                copy.args(["--reflink=auto", "--sparse=always"]).arg(image.join("disk")).arg(&disk);
                ensure!(copy.status().context("running cp")?.success(), "the disk cannot be copied");
            }
        }
        for path in [&machine.directory, &disk] {
            chown(path, Some(UID), Some(UID))?;
        }
        Ok(machine)
    }

    pub fn socket(&self) -> PathBuf {
        // Not in the machine's directory: a directory is copied, a socket is not.
        self.directory.with_extension("sock")
    }

    /// A launch, and its network if there will be a guest to talk to.
    pub fn launch(&self, origin: Origin) -> Result<(Launch, Option<Guest>)> {
        let (net, image) = match &self.subject {
            Subject::Qemu { image } => (Net::new()?, image.clone()),
            Subject::Fake => (Net::none()?, PathBuf::new()),
        };
        let guest = matches!(self.subject, Subject::Qemu { .. }).then(|| Guest(net.netns.clone()));
        let launch = Launch {
            id: self.id.clone(),
            directory: self.directory.clone(),
            socket: self.socket(),
            cpus: 1,
            memory: ByteSize(MEMORY),
            uid: UID,
            kernel: image.join("vmlinux"),
            initrd: image.join("initrd"),
            netns: net.netns,
            ctl_tap: net.ctl,
            eth_tap: net.eth,
            origin,
        };
        Ok((launch, guest))
    }

    /// Starts, and for a boot waits until the guest is up.
    pub async fn start(&self, origin: Origin) -> Result<Running> {
        let (launch, guest) = self.launch(origin)?;
        let vm = self.driver.start(launch).await?;
        self.watch(&vm)?;
        if let (Some(guest), Origin::Boot) = (&guest, origin) {
            let up = tokio::task::block_in_place(|| guest.up());
            up.with_context(|| format!("its console:\n{}", self.console()))?;
        }
        Ok(Running { vm, guest })
    }

    fn watch(&self, vm: &Arc<dyn Vm>) -> Result<()> {
        let pid = Pid::from_raw(vm.pid()).context("a pid of 0")?;
        let mut started = self.started.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
        started.push(pidfd_open(pid, PidfdFlags::empty())?);
        Ok(())
    }

    pub fn known(&self, vm: &Arc<dyn Vm>) -> Known {
        Known {
            id: self.id.clone(),
            pid: vm.pid(),
            started: vm.started(),
            directory: self.directory.clone(),
            socket: self.socket(),
        }
    }

    pub fn console(&self) -> String {
        std::fs::read_to_string(self.directory.join("console.log")).unwrap_or_default()
    }

    /// Processes that carry this machine's id, zombies excluded.
    pub fn processes(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let path = entry?.path().join("cmdline");
            let line = std::fs::read(&path).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(self.id.as_str()) {
                found.push(path.display().to_string());
            }
        }
        Ok(found)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for process in self.started.get_mut().into_iter().flatten() {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        let _ = std::fs::remove_dir_all(&self.directory);
        let _ = std::fs::remove_file(self.socket());
    }
}
