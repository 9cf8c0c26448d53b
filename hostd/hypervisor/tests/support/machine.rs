//! A machine's directory, and the promise that nothing of it stays behind.

use super::{guest::Guest, net::Net, subject::Subject};
use anyhow::{Context, Result, ensure};
use berth_hypervisor::{Driver, Known, Launch, Origin, Vm};
use berth_types::{ByteSize, MachineId};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    fs::{Permissions, set_permissions},
    os::{
        fd::OwnedFd,
        unix::fs::{PermissionsExt as _, chown},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

/// No user of this host.
pub const UID: u32 = 765_432;
pub const MEMORY: u64 = 256 << 20;

/// For a guest that is up already and only has to go on.
const SOON: Duration = Duration::from_secs(60);

pub struct Machine {
    subject: Subject,
    pub id: MachineId,
    pub directory: PathBuf,
    pub driver: Arc<dyn Driver>,
    pub memory: u64,
    started: Mutex<Vec<OwnedFd>>,
}

/// A start that went well.
pub struct Running {
    pub vm: Arc<dyn Vm>,
    /// `None`: a driver without guests.
    pub guest: Option<Guest>,
}

impl Machine {
    /// With an image's disk, ready to boot.
    pub fn new(subject: &Subject) -> Result<Self> {
        let machine = Self::empty(subject)?;
        match subject.image() {
            Some(image) => machine.lay(image, &["disk"])?,
            None => std::fs::write(machine.directory.join("disk"), "")?,
        }
        machine.give_away()?;
        Ok(machine)
    }

    /// Without any file. Machines of 256 MiB, unless a case changes that.
    pub fn empty(subject: &Subject) -> Result<Self> {
        let id = MachineId::random();
        let directory = std::env::temp_dir().join(format!("berth-contract-{id}"));
        std::fs::create_dir(&directory)?;
        let driver = subject.driver()?;
        let started = Mutex::default();
        let machine = Self { subject: subject.clone(), id, directory, driver, memory: MEMORY, started };
        machine.give_away()?;
        Ok(machine)
    }

    /// A machine that is up, and its guest with it. Only the first of a driver
    /// is booted; the others go on from where that one stood.
    pub async fn running(subject: &Subject) -> Result<(Self, Running)> {
        let Some(template) = subject.template()? else {
            let machine = Self::new(subject)?;
            let running = machine.start(Origin::Boot).await?;
            return Ok((machine, running));
        };
        let machine = Self::empty(subject)?;
        let running = machine.wake(template).await?;
        Ok((machine, running))
    }

    /// Copies what was saved somewhere, and goes on from there.
    pub async fn wake(&self, from: &Path) -> Result<Running> {
        self.lay(from, &["disk", "ram", "state"])?;
        self.give_away()?;
        let running = self.start(Origin::Saved).await?;
        running.vm.resume().await?;
        if let Some(guest) = &running.guest {
            ensure!(
                guest.answers(SOON),
                "a restored guest does not answer; its console:\n{}",
                self.console()
            );
        }
        Ok(running)
    }

    /// Copies files, by reflink where the filesystem can.
    pub fn lay(&self, from: &Path, names: &[&str]) -> Result<()> {
        for name in names {
            let mut copy = Command::new("cp");
            copy.args(["--reflink=auto", "--sparse=always"]).arg(from.join(name)).arg(&self.directory);
            ensure!(copy.status().context("running cp")?.success(), "{name} cannot be copied");
        }
        Ok(())
    }

    fn give_away(&self) -> Result<()> {
        let files = ["disk", "ram", "state"].map(|name| self.directory.join(name));
        for path in files.iter().filter(|path| path.exists()) {
            chown(path, Some(UID), Some(UID))?;
        }
        // As hostd makes it: the hypervisor passes through and adds nothing.
        chown(&self.directory, None, Some(UID))?;
        Ok(set_permissions(&self.directory, Permissions::from_mode(berth_sys::machine::MODE))?)
    }

    pub fn socket(&self) -> PathBuf {
        // Not in the machine's directory: a directory is copied, a socket is not.
        self.directory.with_extension("sock")
    }

    /// A launch, and its network if there will be a guest to talk to.
    /// A kernel and what it unpacks first.
    pub fn boots_from(&self) -> [PathBuf; 2] {
        let image = self.subject.image().map(Path::to_owned).unwrap_or_default();
        [self.subject.kernel().unwrap_or_else(|| image.join("vmlinux")), image.join("initrd")]
    }

    pub fn launch(&self, origin: Origin) -> Result<(Launch, Option<Guest>)> {
        let image = self.subject.image();
        let net = if image.is_some() { Net::new()? } else { Net::none()? };
        let guest = image.is_some().then(|| Guest(net.netns.clone()));
        let [kernel, initrd] = self.boots_from();
        let launch = Launch {
            id: self.id.clone(),
            directory: self.directory.clone(),
            socket: self.socket(),
            cpus: 1,
            memory: ByteSize(self.memory),
            disk: ByteSize(std::fs::metadata(self.directory.join("disk")).map_or(0, |disk| disk.len())),
            uid: UID,
            kernel,
            initrd,
            netns: net.netns,
            ctl_tap: net.ctl,
            eth_tap: net.eth,
            origin,
            laid_out: None,
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

    pub fn watch(&self, vm: &Arc<dyn Vm>) -> Result<()> {
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

    /// Processes that run in this machine's directory, zombies excluded.
    pub fn processes(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let path = entry?.path();
            if path.join("cwd").read_link().is_ok_and(|directory| directory == self.directory) {
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
        for leftover in [self.socket(), self.socket().with_extension("events")] {
            let _ = std::fs::remove_file(leftover);
        }
    }
}
