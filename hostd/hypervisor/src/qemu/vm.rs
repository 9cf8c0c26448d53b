//! One QEMU process, new or adopted.

use super::{
    Qemu,
    detect::Accelerator,
    qmp::{LIMIT, Qmp, Seen},
    realtime::{self, Raised, Turn},
    start,
};
use crate::{
    Error, Exit, Known, Launch, Origin, Vm,
    files::{self, STATE, UNFINISHED},
    jail,
    process::Process,
    spawn,
    supervise::{LAST_WORDS, Supervised, ended_meanwhile, explain},
};
use berth_types::ByteSize;
use qapi::qmp::{self, MigrationCapability, MigrationCapabilityStatus, MigrationStatus, RunState};
use rustix::{fs::FallocateFlags, process::Signal};
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Mutex, watch},
    time::timeout,
};

/// For a new process to answer, on a host that starts many.
const START_LIMIT: Duration = Duration::from_secs(60);
/// For a save or a restore: small, but the disk below may be busy.
const STATE_LIMIT: Duration = Duration::from_secs(60);
/// More than device state ever took.
const STATE_ROOM: u64 = 1 << 20;
/// Under which QEMU files the descriptor it was handed.
const HANDED: &str = "state";

#[derive(Debug)]
pub(super) struct QemuVm {
    supervised: Supervised,
    /// Closed with the Vm, for QEMU has one client at a time.
    qmp: Arc<Qmp>,
    directory: PathBuf,
    /// Two saves at once would share a file.
    saving: Mutex<()>,
}

impl QemuVm {
    pub(super) async fn start(qemu: Qemu, mut launch: Launch) -> Result<Arc<Self>, Error> {
        let laid_out = launch.take_laid_out();
        let launch = Arc::new(launch);
        if (launch.origin, qemu.accelerator) != (Origin::Boot, Accelerator::Tcg) {
            return Ok(Self::begin(&qemu, &launch, laid_out, None).await?.0);
        }
        for patience in realtime::PATIENCE {
            let turn = qemu.boots.next().await;
            let (vm, raised) = Self::begin(&qemu, &launch, async { Ok(()) }, turn).await?;
            let Some(raised) = raised else { return Ok(vm) };
            let unfinished = Unfinished(Some(vm));
            if unfinished.guest_init_runs(&raised, patience).await {
                drop(raised);
                return unfinished.finish();
            }
            tracing::warn!(machine = %launch.id, ?patience, "a boot stands still: its timer was measured wrongly; once more");
            unfinished.end().await?;
        }
        Ok(Self::begin(&qemu, &launch, laid_out, None).await?.0)
    }

    /// Returns when the control socket answers, for a saved machine when its state is loaded.
    async fn begin(
        qemu: &Qemu,
        launch: &Arc<Launch>,
        laid_out: impl Future<Output = Result<(), Error>>,
        turn: Option<Turn>,
    ) -> Result<(Arc<Self>, Option<Raised>), Error> {
        let (directory, socket) = (launch.directory.clone(), launch.socket.clone());
        let expected = spawn::expected(launch, qemu.device_group)?;
        let clock = Instant::now();
        let starting = (qemu.clone(), Arc::clone(launch));
        let newborn = tokio::task::spawn_blocking(move || start::start(&starting.0, &starting.1))
            .await
            .map_err(|error| Error::Io { operation: "starting the hypervisor", source: error.into() })??;
        let spawned = clock.elapsed();
        let raised =
            turn.zip(newborn.process()).and_then(|(turn, process)| turn.raise(process.pid(), &directory));
        let begun = async {
            let qmp = Qmp::connect(socket, START_LIMIT).await?;
            let answered = clock.elapsed();
            if launch.origin == Origin::Saved {
                laid_out.await?;
                restore(&qmp, &directory).await?;
            }
            newborn.confined(&expected)?;
            if launch.origin == Origin::Boot {
                qmp.ask("starting the machine", qmp::cont {}).await?;
            }
            tracing::debug!(?spawned, ?answered, ready = ?clock.elapsed(), "started QEMU");
            Ok(qmp)
        };
        let begun = begun.await;
        qemu.jail.fill_later();
        match begun {
            Ok(qmp) => match newborn.grown() {
                Some((process, leftovers)) => {
                    Ok((Self::supervise(process, qmp, directory, leftovers), raised))
                }
                None => Err(Error::Gone(Exit::Unknown)),
            },
            Err(error) => Err(explain(error, newborn.process(), &directory).await),
        }
    }

    pub(super) async fn adopt(qemu: &Qemu, process: Process, known: Known) -> Result<Arc<Self>, Error> {
        realtime::lower(process.id())
            .map_err(|source| Error::Io { operation: "lowering a hypervisor's priority", source })?;
        let group = qemu.jail.groups().of_process(process.pid());
        let leftovers: Vec<PathBuf> = [known.socket.clone()].into_iter().chain(group).collect();
        let clear = || leftovers.iter().for_each(|path| files::discard(path));
        let asked = async {
            let qmp = Qmp::connect(known.socket.clone(), LIMIT).await?;
            let status = qmp.ask("adopting", qmp::query_status {}).await?.status;
            Ok((qmp, status))
        };
        match asked.await {
            // Started to be restored or to boot, and whoever was to go on with it is gone.
            Ok((_, RunState::inmigrate | RunState::prelaunch)) => {
                process.kill().await?;
                clear();
                Err(Error::Gone(Exit::Signal(Signal::KILL.as_raw())))
            }
            Ok((qmp, _)) => Ok(Self::supervise(process, qmp, known.directory, leftovers)),
            Err(error) => match ended_meanwhile(&process, &known.directory).await {
                Some(exit) => {
                    clear();
                    Err(Error::Gone(exit))
                }
                None => Err(error),
            },
        }
    }

    fn supervise(process: Process, qmp: Qmp, directory: PathBuf, leftovers: Vec<PathBuf>) -> Arc<Self> {
        let qmp = Arc::new(qmp);
        let witness = Arc::downgrade(&qmp);
        let last_words = move |end| async move {
            let Some(qmp) = witness.upgrade() else { return (end, None) };
            let _ = timeout(LAST_WORDS, qmp.drained()).await;
            (end, qmp.cause())
        };
        let supervised = Supervised::watch(Arc::new(process), directory.clone(), leftovers, last_words);
        Arc::new(Self { supervised, qmp, directory, saving: Mutex::default() })
    }
}

/// A boot whose guest-init does not run yet. Dropped, its process ends.
struct Unfinished(Option<Arc<QemuVm>>);

impl Unfinished {
    /// False: it has not begun to run within the limit. A process that has ended is for the caller's `wait` to explain.
    async fn guest_init_runs(&self, raised: &Raised, limit: Duration) -> bool {
        let Some(vm) = &self.0 else { return false };
        tokio::select! {
            runs = raised.guest_init_runs(limit) => runs,
            _ = vm.wait() => true,
        }
    }

    fn finish(mut self) -> Result<Arc<QemuVm>, Error> {
        self.0.take().ok_or(Error::Gone(Exit::Unknown))
    }

    async fn end(mut self) -> Result<(), Error> {
        if let Some(vm) = self.0.take() {
            vm.kill().await?;
            // Then its socket is gone too.
            vm.wait().await;
        }
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(vm) = &self.0 {
            let _ = vm.supervised.process.signal(Signal::KILL);
        }
    }
}

#[async_trait::async_trait]
impl Vm for QemuVm {
    fn pid(&self) -> i32 {
        self.supervised.process.pid()
    }

    fn started(&self) -> u64 {
        self.supervised.process.started()
    }

    async fn pause(&self) -> Result<(), Error> {
        self.supervised.or_gone(self.qmp.pause().await).await
    }

    async fn resume(&self) -> Result<(), Error> {
        self.supervised.or_gone(self.qmp.ask("resuming", qmp::cont {}).await).await.map(drop)
    }

    async fn save(&self) -> Result<(), Error> {
        let _alone = self.saving.lock().await;
        self.supervised.or_gone(save(&self.qmp, &self.directory).await).await
    }

    async fn resize_disk(&self, size: ByteSize) -> Result<(), Error> {
        jail::allow_file_size(&self.supervised.process, size.bytes())?;
        let size = i64::try_from(size.bytes()).unwrap_or(i64::MAX);
        let resize = qmp::block_resize { device: Some("disk".to_owned()), node_name: None, size };
        self.supervised.or_gone(self.qmp.ask("resizing the disk", resize).await).await.map(drop)
    }

    async fn kill(&self) -> Result<(), Error> {
        self.supervised.kill().await
    }

    async fn wait(&self) -> Exit {
        self.supervised.wait().await
    }

    fn cpu_time(&self) -> u64 {
        self.supervised.process.cpu_time()
    }
}

/// RAM is in its file: what is left to write is some tens of kilobytes.
async fn leave_ram(qmp: &Qmp) -> Result<(), Error> {
    let on = |capability| MigrationCapabilityStatus { capability, state: true };
    let capabilities = vec![on(MigrationCapability::x_ignore_shared), on(MigrationCapability::events)];
    qmp.ask("preparing device state", qmp::migrate_set_capabilities { capabilities }).await.map(drop)
}

async fn hand_over(qmp: &Qmp, file: OwnedFd) -> Result<(), Error> {
    qmp.hand("handing over the state file", qmp::getfd { fdname: HANDED.to_owned() }, file).await.map(drop)
}

async fn save(qmp: &Qmp, directory: &Path) -> Result<(), Error> {
    const OPERATION: &str = "saving device state";
    let failed = |source| Error::Io { operation: OPERATION, source };
    if qmp.ask(OPERATION, qmp::query_status {}).await?.running {
        // QEMU would stop it at a moment of its own choice.
        return Err(Error::Refused { operation: OPERATION, message: "the machine is not paused".to_owned() });
    }
    leave_ram(qmp).await?;
    let file = files::create(directory, UNFINISHED).map_err(failed)?;
    // Room for it, for a full pool is told plainly here and not by QEMU.
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, STATE_ROOM)
        .map_err(|error| failed(error.into()))?;
    hand_over(qmp, file.try_clone().map_err(failed)?.into()).await?;
    let mut seen = qmp.forget_migration();
    let uri = Some(format!("fd:{HANDED}"));
    let migrate = qmp::migrate { uri, channels: None, detach: None, resume: None };
    qmp.ask(OPERATION, migrate).await?;
    settled(OPERATION, &mut seen, qmp).await?;
    // What it did not need is given back.
    file.metadata().and_then(|stat| file.set_len(stat.len())).map_err(failed)?;
    // Renamed when it is whole. Putting it on the disk below is for whoever
    // wants it to last: the machine stands still meanwhile.
    files::rename(directory, UNFINISHED, STATE).map_err(failed)
}

async fn restore(qmp: &Qmp, directory: &Path) -> Result<(), Error> {
    const OPERATION: &str = "loading device state";
    let file = files::read(directory, STATE).map_err(|source| Error::Io { operation: OPERATION, source })?;
    leave_ram(qmp).await?;
    hand_over(qmp, file.into()).await?;
    let mut seen = qmp.forget_migration();
    let uri = Some(format!("fd:{HANDED}"));
    qmp.ask(OPERATION, qmp::migrate_incoming { uri, channels: None, exit_on_error: None }).await?;
    settled(OPERATION, &mut seen, qmp).await
}

/// Waits for the event that says how a save or a load went.
async fn settled(operation: &'static str, seen: &mut watch::Receiver<Seen>, qmp: &Qmp) -> Result<(), Error> {
    let over = |seen: &Seen| {
        matches!(
            seen.migration,
            Some(MigrationStatus::completed | MigrationStatus::failed | MigrationStatus::cancelled)
        )
    };
    let end = tokio::select! {
        end = timeout(STATE_LIMIT, seen.wait_for(over)) => {
            end.map_err(|_| Error::Timeout { operation, limit: STATE_LIMIT })?.ok().and_then(|seen| seen.migration)
        }
        () = qmp.drained() => {
            return Err(Error::Io { operation, source: std::io::ErrorKind::UnexpectedEof.into() });
        }
    };
    match end {
        Some(MigrationStatus::completed) => Ok(()),
        _ => {
            let info = qmp.ask(operation, qmp::query_migrate {}).await?;
            let message = info.error_desc.unwrap_or_else(|| "it did not say why".to_owned());
            Err(Error::Refused { operation, message })
        }
    }
}
