//! One QEMU process, new or adopted.

use super::{
    Qemu,
    linked::Ahead,
    qmp::{LIMIT, Qmp, Seen},
    start,
};
use crate::{
    Error, Exit, Known, Launch, Origin, Vm,
    files::{self, STATE, UNFINISHED},
    process::Process,
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
    ahead: Option<Arc<Ahead>>,
}

impl QemuVm {
    pub(super) async fn start(qemu: Qemu, mut launch: Launch) -> Result<Arc<Self>, Error> {
        let laid_out = launch.take_laid_out();
        let (directory, socket, origin) = (launch.directory.clone(), launch.socket.clone(), launch.origin);
        let (clock, ahead) = (Instant::now(), qemu.ahead.clone());
        let newborn = tokio::task::spawn_blocking(move || start::start(&qemu, &launch))
            .await
            .map_err(|error| Error::Io { operation: "starting the hypervisor", source: error.into() })??;
        let spawned = clock.elapsed();
        let begun = async {
            let qmp = Qmp::connect(socket, START_LIMIT).await?;
            let answered = clock.elapsed();
            if origin == Origin::Saved {
                laid_out.await?;
                restore(&qmp, &directory).await?;
            }
            tracing::debug!(?spawned, ?answered, ready = ?clock.elapsed(), "started QEMU");
            Ok(qmp)
        };
        let begun = begun.await;
        ahead.iter().for_each(Ahead::fill_later);
        match begun {
            Ok(qmp) => match newborn.grown() {
                Some((process, leftovers)) => Ok(Self::supervise(process, qmp, directory, leftovers, ahead)),
                None => Err(Error::Gone(Exit::Unknown)),
            },
            Err(error) => Err(explain(error, newborn.process(), &directory).await),
        }
    }

    pub(super) async fn adopt(qemu: &Qemu, process: Process, known: Known) -> Result<Arc<Self>, Error> {
        let group = qemu.groups.of_process(process.pid());
        let leftovers: Vec<PathBuf> = [known.socket.clone()].into_iter().chain(group).collect();
        let clear = || leftovers.iter().for_each(|path| files::discard(path));
        let asked = async {
            let qmp = Qmp::connect(known.socket.clone(), LIMIT).await?;
            let status = qmp.ask("adopting", qmp::query_status {}).await?.status;
            Ok((qmp, status))
        };
        match asked.await {
            // Started to be restored, and whoever was to hand over the state is gone.
            Ok((_, RunState::inmigrate)) => {
                process.kill().await?;
                clear();
                Err(Error::Gone(Exit::Signal(Signal::KILL.as_raw())))
            }
            Ok((qmp, _)) => Ok(Self::supervise(process, qmp, known.directory, leftovers, qemu.ahead.clone())),
            Err(error) => match ended_meanwhile(&process, &known.directory).await {
                Some(exit) => {
                    clear();
                    Err(Error::Gone(exit))
                }
                None => Err(error),
            },
        }
    }

    fn supervise(
        process: Process,
        qmp: Qmp,
        directory: PathBuf,
        leftovers: Vec<PathBuf>,
        ahead: Option<Arc<Ahead>>,
    ) -> Arc<Self> {
        let qmp = Arc::new(qmp);
        let witness = Arc::downgrade(&qmp);
        let last_words = move |end| async move {
            let Some(qmp) = witness.upgrade() else { return (end, None) };
            let _ = timeout(LAST_WORDS, qmp.drained()).await;
            (end, qmp.cause())
        };
        let supervised = Supervised::watch(Arc::new(process), directory.clone(), leftovers, last_words);
        Arc::new(Self { supervised, qmp, directory, saving: Mutex::default(), ahead })
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
        self.supervised.or_gone(self.qmp.ask("pausing", qmp::stop {}).await).await.map(drop)
    }

    async fn resume(&self) -> Result<(), Error> {
        self.supervised.or_gone(self.qmp.ask("resuming", qmp::cont {}).await).await.map(drop)
    }

    async fn save(&self) -> Result<(), Error> {
        let _alone = self.saving.lock().await;
        self.supervised.or_gone(save(&self.qmp, &self.directory).await).await
    }

    async fn resize_disk(&self, size: ByteSize) -> Result<(), Error> {
        let size = i64::try_from(size.bytes()).unwrap_or(i64::MAX);
        let resize = qmp::block_resize { device: Some("disk".to_owned()), node_name: None, size };
        self.supervised.or_gone(self.qmp.ask("resizing the disk", resize).await).await.map(drop)
    }

    async fn kill(&self) -> Result<(), Error> {
        let killed = self.supervised.kill().await;
        // Nobody waits for this one any more, and somebody for another one next.
        self.ahead.iter().for_each(Ahead::fill);
        killed
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
    std::fs::rename(directory.join(UNFINISHED), directory.join(STATE)).map_err(failed)
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
