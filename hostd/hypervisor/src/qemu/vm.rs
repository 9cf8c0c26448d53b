//! One QEMU process, new or adopted.

use super::{
    Qemu,
    arguments::{CONSOLE, LOG, STATE},
    files,
    qmp::{LIMIT, Qmp, Seen},
    spawn::{self, Newborn},
    verdict::{BOOTED, RESTORED, verdict},
};
use crate::{Error, Exit, Known, Launch, Origin, Vm, process::Process};
use berth_types::ByteSize;
use qapi::qmp::{self, MigrationCapability, MigrationCapabilityStatus, MigrationStatus, RunState};
use rustix::{fs::FallocateFlags, process::Signal};
use std::{
    convert::Infallible,
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
/// For a dead process's last words to arrive.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often logs are looked at, that no guest fills the pool with its console.
const LOGS: Duration = Duration::from_secs(10);
/// Enough of a console for a panic's trace.
const CONSOLE_TAIL: u64 = 64 * 1024;
/// More than device state ever took.
const STATE_ROOM: u64 = 1 << 20;
const UNFINISHED: &str = "state.tmp";
/// Under which QEMU files the descriptor it was handed.
const HANDED: &str = "state";

#[derive(Debug)]
pub(super) struct QemuVm {
    process: Arc<Process>,
    /// Closed with the Vm, for QEMU has one client at a time.
    qmp: Arc<Qmp>,
    directory: PathBuf,
    /// Two saves at once would share a file.
    saving: Mutex<()>,
    exit: watch::Receiver<Option<Exit>>,
}

impl QemuVm {
    pub(super) async fn start(qemu: Qemu, launch: Launch) -> Result<Arc<Self>, Error> {
        let (directory, socket, origin) = (launch.directory.clone(), launch.socket.clone(), launch.origin);
        let clock = Instant::now();
        let newborn = tokio::task::spawn_blocking(move || spawn::spawn(&qemu, &launch))
            .await
            .map_err(|error| Error::Io { operation: "starting the hypervisor", source: error.into() })??;
        let spawned = clock.elapsed();
        let begun = async {
            let qmp = Qmp::connect(socket.clone(), START_LIMIT).await?;
            let answered = clock.elapsed();
            if origin == Origin::Saved {
                restore(&qmp, &directory).await?;
            }
            tracing::debug!(?spawned, ?answered, ready = ?clock.elapsed(), "started QEMU");
            Ok(qmp)
        };
        match begun.await {
            Ok(qmp) => match newborn.grown() {
                Some(process) => Ok(Self::supervise(process, qmp, directory, socket)),
                None => Err(Error::Gone(Exit::Unknown)),
            },
            Err(error) => Err(explain(error, &newborn, &directory).await),
        }
    }

    pub(super) async fn adopt(process: Process, known: Known) -> Result<Arc<Self>, Error> {
        let asked = async {
            let qmp = Qmp::connect(known.socket.clone(), LIMIT).await?;
            let status = qmp.ask("adopting", qmp::query_status {}).await?.status;
            Ok((qmp, status))
        };
        match asked.await {
            // Started to be restored, and whoever was to hand over the state is gone.
            Ok((_, RunState::inmigrate)) => {
                process.kill().await?;
                let _ = std::fs::remove_file(&known.socket);
                Err(Error::Gone(Exit::Signal(Signal::KILL.as_raw())))
            }
            Ok((qmp, _)) => Ok(Self::supervise(process, qmp, known.directory, known.socket)),
            // It may have ended while we knocked.
            Err(error) => match timeout(LAST_WORDS, process.ended()).await {
                Ok(end) => {
                    let console = files::tail(&known.directory, CONSOLE, CONSOLE_TAIL);
                    let _ = std::fs::remove_file(&known.socket);
                    Err(Error::Gone(verdict(end, None, &console)))
                }
                Err(_) => Err(error),
            },
        }
    }

    fn supervise(process: Process, qmp: Qmp, directory: PathBuf, socket: PathBuf) -> Arc<Self> {
        let (sender, exit) = watch::channel(None);
        let vm = Self {
            process: Arc::new(process),
            qmp: Arc::new(qmp),
            directory,
            saving: Mutex::default(),
            exit,
        };
        let (process, qmp, directory) = (vm.process.clone(), Arc::downgrade(&vm.qmp), vm.directory.clone());
        // It ends with the process, not with the Vm: somebody has to reap.
        tokio::spawn(async move {
            let end = tokio::select! {
                end = process.ended() => end,
                never = tend(&directory) => match never {},
            };
            let cause = match qmp.upgrade() {
                Some(qmp) => {
                    let _ = timeout(LAST_WORDS, qmp.drained()).await;
                    qmp.shutdown_cause()
                }
                None => None,
            };
            let _ = std::fs::remove_file(&socket);
            let console = files::tail(&directory, CONSOLE, CONSOLE_TAIL);
            sender.send_replace(Some(verdict(end, cause, &console)));
        });
        Arc::new(vm)
    }

    /// A question that a process has died over is answered by its end.
    async fn or_gone<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        match result {
            Err(error @ Error::Io { .. }) => match timeout(2 * LAST_WORDS, self.wait()).await {
                Ok(exit) => Err(Error::Gone(exit)),
                Err(_) => Err(error),
            },
            result => result,
        }
    }
}

#[async_trait::async_trait]
impl Vm for QemuVm {
    fn pid(&self) -> i32 {
        self.process.pid()
    }

    fn started(&self) -> u64 {
        self.process.started()
    }

    async fn pause(&self) -> Result<(), Error> {
        self.or_gone(self.qmp.ask("pausing", qmp::stop {}).await).await.map(drop)
    }

    async fn resume(&self) -> Result<(), Error> {
        self.or_gone(self.qmp.ask("resuming", qmp::cont {}).await).await.map(drop)
    }

    async fn save(&self) -> Result<(), Error> {
        let _alone = self.saving.lock().await;
        self.or_gone(save(&self.qmp, &self.directory).await).await
    }

    async fn resize_disk(&self, size: ByteSize) -> Result<(), Error> {
        let size = i64::try_from(size.bytes()).unwrap_or(i64::MAX);
        let resize = qmp::block_resize { device: Some("disk".to_owned()), node_name: None, size };
        self.or_gone(self.qmp.ask("resizing the disk", resize).await).await.map(drop)
    }

    async fn kill(&self) -> Result<(), Error> {
        self.process.signal(Signal::KILL)?;
        timeout(LIMIT, self.wait())
            .await
            .map(drop)
            .map_err(|_| Error::Timeout { operation: "ending the hypervisor", limit: LIMIT })
    }

    async fn wait(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.unwrap_or(Exit::Unknown),
            // Only if the runtime is being shut down.
            Err(_) => Exit::Unknown,
        }
    }

    fn cpu_time(&self) -> u64 {
        self.process.cpu_time()
    }
}

/// Keeps the logs small for as long as it is polled.
async fn tend(directory: &Path) -> Infallible {
    let mut tick = tokio::time::interval(LOGS);
    loop {
        tick.tick().await;
        for log in [CONSOLE, LOG] {
            if let Err(error) = files::trim(directory, log) {
                tracing::debug!(%error, log, directory = %directory.display(), "a log cannot be trimmed");
            }
        }
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

/// A hypervisor that refuses to start says why in its log, and ends.
async fn explain(error: Error, newborn: &Newborn, directory: &Path) -> Error {
    let Some(process) = newborn.process() else { return error };
    if !matches!(error, Error::Io { .. }) || timeout(LAST_WORDS, process.ended()).await.is_err() {
        return error;
    }
    Error::Refused {
        operation: "starting the machine",
        message: complaint(&files::tail(directory, LOG, 4096)),
    }
}

/// What a hypervisor said since it was started, on one line.
fn complaint(log: &str) -> String {
    let last = log.rfind(BOOTED).max(log.rfind(RESTORED)).and_then(|start| log.get(start..)).unwrap_or(log);
    let lines: Vec<&str> = last.lines().skip(1).map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_this_starts_and_one_line() {
        let log = "berth: power on\nold\n\nberth: restored\nqemu: -drive x: no \"write\" lock\nIs it in \u{7}use?\n";
        assert_eq!(complaint(log), "qemu: -drive x: no \"write\" lock; Is it in use?");
        assert_eq!(complaint("berth: power on\n"), "");
        assert_eq!(complaint(""), "");
        assert!(complaint(&format!("berth: power on\n{}", "x".repeat(4096))).len() <= 300);
    }
}
