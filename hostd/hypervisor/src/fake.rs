//! A driver without a guest, for tests of what is built on drivers.
//!
//! Honest where it counts: a machine is a real process with a real pid that
//! can be killed, paused, saved and adopted by another driver. What tests need
//! beyond that — a start that fails or drags on, a guest that ends — is asked
//! for by name.

use crate::{
    Capabilities, Driver, Error, Exit, Known, Launch, Origin, Vm,
    cgroup::Groups,
    files::{self, CONSOLE, DISK, Files, RAM, UNFINISHED},
    process::{End, Process},
};
use berth_sys::{Access, beneath::give};
use berth_types::{ByteSize, MachineId};
use rustix::process::{Pid, Signal};
use std::{
    collections::HashMap,
    io::{self, Write as _},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// What its device state says.
pub const STATE: &str = "berth: a fake machine's devices\n";

#[derive(Clone, Debug, Default)]
pub struct Fake(Arc<Mutex<Script>>);

/// What tests have asked for.
#[derive(Debug, Default)]
struct Script {
    failures: Vec<String>,
    delay: Duration,
    wanders: bool,
    running: HashMap<MachineId, Arc<Process>>,
    exits: HashMap<MachineId, Exit>,
}

impl Fake {
    pub fn new() -> Self {
        Self::default()
    }

    /// The next start is refused with these words.
    pub fn fail_next_start(&self, message: &str) {
        self.script().failures.push(message.to_owned());
    }

    /// Every start from now on takes this long.
    pub fn delay_starts(&self, delay: Duration) {
        self.script().delay = delay;
    }

    /// Every machine that is started from now on leaves its directory, as a hypervisor can
    /// that its guest has taken over. It stays in its control group.
    pub fn wander(&self) {
        self.script().wanders = true;
    }

    /// The guest ends by itself: its process does, and is reported as this.
    pub fn end(&self, id: &MachineId, exit: Exit) -> Result<(), Error> {
        let process = {
            let mut script = self.script();
            script.exits.insert(id.clone(), exit);
            script.running.get(id).cloned()
        };
        process.map_or(Ok(()), |process| process.signal(Signal::KILL))
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn supervise(
        &self,
        id: MachineId,
        process: Process,
        paused: bool,
        directory: PathBuf,
        socket: PathBuf,
    ) -> Arc<dyn Vm> {
        let process = Arc::new(process);
        self.script().running.insert(id.clone(), process.clone());
        let (sender, exit) = watch::channel(None);
        let (fake, watched) = (self.clone(), process.clone());
        let group = Groups::find().of_process(process.pid());
        tokio::spawn(async move {
            let end = watched.ended().await;
            group.as_deref().map(files::discard);
            let _ = std::fs::remove_file(socket);
            let asked = {
                let mut script = fake.script();
                script.running.remove(&id);
                script.exits.remove(&id)
            };
            sender.send_replace(Some(asked.unwrap_or(match end {
                End::Status(status) => Exit::Status(status),
                End::Signal(signal) => Exit::Signal(signal),
                End::Untold => Exit::Unknown,
            })));
        });
        Arc::new(FakeVm { process, directory, paused: AtomicBool::new(paused), exit })
    }
}

#[async_trait::async_trait]
impl Driver for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn version(&self) -> &str {
        "1"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { save: true, pause: true, rehearse: false }
    }

    async fn start(&self, mut launch: Launch) -> Result<Arc<dyn Vm>, Error> {
        let (failure, delay, wanders) = {
            let mut script = self.script();
            (script.failures.pop(), script.delay, script.wanders)
        };
        tokio::time::sleep(delay).await;
        if let Some(message) = failure {
            return Err(Error::Refused { operation: "starting the machine", message });
        }
        launch.take_laid_out().await?;
        let process = spawn(&launch, wanders)?;
        let paused = launch.origin == Origin::Saved;
        if paused {
            process.signal(Signal::STOP)?;
        }
        Ok(self.supervise(launch.id, process, paused, launch.directory, launch.socket))
    }

    async fn adopt(&self, known: Known, _uid: u32) -> Result<Option<Arc<dyn Vm>>, Error> {
        let process = Process::find(known.pid, known.started)?;
        Ok(process.map(|process| {
            let paused = process.is_stopped();
            self.supervise(known.id, process, paused, known.directory, known.socket)
        }))
    }
}

fn spawn(launch: &Launch, wanders: bool) -> Result<Process, Error> {
    check(launch)
        .map_err(|error| Error::Refused { operation: "starting the machine", message: error.to_string() })?;
    let program = "sleep";
    let child = Command::new(program)
        .arg("infinity")
        .current_dir(if wanders { Path::new("/") } else { &launch.directory })
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|source| Error::Spawn { program: program.to_owned(), source })?;
    let process = Process::of_child(Pid::from_child(&child))?;
    if wanders
        && let Some(group) = Groups::prepare().make(launch)
        && let Err(source) = group.enter(child.id())
    {
        process.signal(Signal::KILL)?;
        return Err(Error::Io { operation: "entering a control group", source });
    }
    Ok(process)
}

/// What a real hypervisor would find out for itself.
fn check(launch: &Launch) -> io::Result<()> {
    let files = Files::open(&launch.directory)?;
    files.open_file(DISK, Access::Both)?;
    match launch.origin {
        Origin::Boot => {
            let ram = files.create(RAM)?;
            ram.set_len(launch.memory.0)?;
            give(&ram, launch.uid)?;
        }
        Origin::Saved => {
            files.open_file(RAM, Access::Both)?;
            if files.read_file(files::STATE)? != STATE.as_bytes() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the device state is damaged"));
            }
        }
    }
    files::log(&launch.directory, CONSOLE, launch.uid, "berth: power on")?;
    std::fs::write(&launch.socket, "")
}

#[derive(Debug)]
struct FakeVm {
    process: Arc<Process>,
    directory: PathBuf,
    paused: AtomicBool,
    exit: watch::Receiver<Option<Exit>>,
}

impl FakeVm {
    fn alive(&self) -> Result<(), Error> {
        let exit = *self.exit.borrow();
        exit.map_or(Ok(()), |exit| Err(Error::Gone(exit)))
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.alive()?;
        self.process.signal(signal)
    }
}

#[async_trait::async_trait]
impl Vm for FakeVm {
    fn pid(&self) -> i32 {
        self.process.pid()
    }

    fn started(&self) -> u64 {
        self.process.started()
    }

    async fn pause(&self) -> Result<(), Error> {
        self.signal(Signal::STOP)?;
        self.paused.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)?;
        self.paused.store(false, Ordering::Relaxed);
        Ok(())
    }

    async fn save(&self) -> Result<(), Error> {
        self.alive()?;
        if !self.paused.load(Ordering::Relaxed) {
            let message = "the machine is not paused".to_owned();
            return Err(Error::Refused { operation: "saving device state", message });
        }
        let write = |directory: &Path| {
            files::create(directory, UNFINISHED)?.write_all(STATE.as_bytes())?;
            files::rename(directory, UNFINISHED, files::STATE)
        };
        write(&self.directory).map_err(|source| Error::Io { operation: "saving device state", source })
    }

    async fn resize_disk(&self, size: ByteSize) -> Result<(), Error> {
        self.alive()?;
        let grown = Files::open(&self.directory).and_then(|files| files.open_file(DISK, Access::Write));
        grown
            .and_then(|disk| disk.set_len(size.0))
            .map_err(|source| Error::Io { operation: "resizing the disk", source })
    }

    async fn kill(&self) -> Result<(), Error> {
        self.process.signal(Signal::KILL)?;
        self.wait().await;
        Ok(())
    }

    async fn wait(&self) -> Exit {
        let mut exit = self.exit.clone();
        exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit).unwrap_or(Exit::Unknown)
    }

    fn cpu_time(&self) -> u64 {
        self.process.cpu_time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::ByteSize;
    use std::{fs::File, time::Instant};

    struct Scratch(PathBuf, MachineId);

    impl Scratch {
        fn new() -> Self {
            let id = MachineId::random();
            let path = std::env::temp_dir().join(format!("berth-fake-{id}"));
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("disk"), "").unwrap();
            Self(path, id)
        }

        fn launch(&self) -> Launch {
            let null = || File::open("/dev/null").unwrap().into();
            Launch {
                id: self.1.clone(),
                directory: self.0.clone(),
                socket: self.0.join("socket"),
                cpus: 1,
                memory: ByteSize(1 << 20),
                disk: ByteSize(0),
                uid: 0,
                kernel: PathBuf::new(),
                initrd: PathBuf::new(),
                netns: Arc::new(null()),
                ctl_tap: null(),
                eth_tap: null(),
                origin: Origin::Boot,
                laid_out: None,
            }
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[tokio::test]
    async fn a_start_fails_once_when_asked_to() {
        berth_sys::needs_root!();
        let (fake, scratch) = (Fake::new(), Scratch::new());
        fake.fail_next_start("no room");
        let refused = fake.start(scratch.launch()).await;
        assert!(matches!(refused, Err(Error::Refused { message, .. }) if message == "no room"));
        fake.start(scratch.launch()).await.unwrap().kill().await.unwrap();
    }

    #[tokio::test]
    async fn a_start_drags_on_when_asked_to() {
        berth_sys::needs_root!();
        let (fake, scratch) = (Fake::new(), Scratch::new());
        fake.delay_starts(Duration::from_millis(50));
        let begun = Instant::now();
        let vm = fake.start(scratch.launch()).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(50));
        vm.kill().await.unwrap();
    }

    #[tokio::test]
    async fn a_guest_ends_as_told() {
        berth_sys::needs_root!();
        for exit in [Exit::Clean, Exit::Reboot, Exit::Panic] {
            let (fake, scratch) = (Fake::new(), Scratch::new());
            let vm = fake.start(scratch.launch()).await.unwrap();
            fake.end(&scratch.1, exit).unwrap();
            assert_eq!(vm.wait().await, exit);
            assert!(matches!(vm.pause().await, Err(Error::Gone(gone)) if gone == exit));
        }
    }
}
