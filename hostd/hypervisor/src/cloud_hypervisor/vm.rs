//! One Cloud Hypervisor process, new or adopted.

use super::{
    CloudHypervisor,
    api::Api,
    config::{DISK_ID, LINKS, Machine},
    events::{self, Events},
    start::{self, Begun},
    state::{RESTORING, SAVING, Saving},
};
use crate::{
    Error, Exit, Known, Launch, Vm, files, jail,
    process::{End, Process},
    spawn,
    supervise::{LAST_WORDS, Supervised, ended_meanwhile, explain},
    verdict::Cause,
};
use berth_types::ByteSize;
use rustix::process::Signal;
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};
use tokio::{sync::Mutex, time::timeout};

#[derive(Debug)]
pub(super) struct CloudVm {
    supervised: Supervised,
    api: Api,
    directory: PathBuf,
    /// Two saves at once would share a directory.
    saving: Mutex<()>,
}

impl CloudVm {
    pub(super) async fn start(driver: CloudHypervisor, mut launch: Launch) -> Result<Arc<Self>, Error> {
        let laid_out = launch.take_laid_out();
        let socket = launch.socket.clone();
        let expected = spawn::expected(&launch, driver.device_group)?;
        let clock = Instant::now();
        let (driver, launch, begun) = blocking("starting the hypervisor", move || {
            let begun = start::start(&driver, &launch)?;
            Ok((driver, launch, begun))
        })
        .await?;
        let Begun { newborn, memory, direct, restoring } = begun;
        let spawned = clock.elapsed();
        let directory = launch.directory.clone();
        let api = Api::new(&socket);
        let going = async {
            let events = Events::open(&events::path(&socket))?;
            let machine = Machine::new(&driver, &launch, memory, direct);
            let taps = [&launch.ctl_tap, &launch.eth_tap].map(OwnedFd::try_clone);
            let taps = taps.into_iter().collect::<std::io::Result<Vec<_>>>();
            let taps = taps.map_err(|source| Error::Io { operation: "sharing the taps", source })?;
            if restoring.is_some() {
                laid_out.await?;
                api.restore(RESTORING, &LINKS.map(|(id, _)| id), taps).await?;
                newborn.confined(&expected)?;
            } else {
                describe(&api, &machine, taps).await?;
                newborn.confined(&expected)?;
                api.boot().await?;
            }
            tracing::debug!(?spawned, ready = ?clock.elapsed(), "started Cloud Hypervisor");
            Ok(events)
        };
        let going = going.await;
        driver.jail.fill_later();
        match going {
            Ok(events) => match newborn.grown() {
                Some((process, leftovers)) => Ok(Self::supervise(process, api, events, directory, leftovers)),
                None => Err(Error::Gone(Exit::Unknown)),
            },
            Err(error) => Err(explain(error, newborn.process(), &directory).await),
        }
    }

    pub(super) async fn adopt(
        driver: &CloudHypervisor,
        process: Process,
        known: Known,
    ) -> Result<Arc<Self>, Error> {
        let pipe = events::path(&known.socket);
        let group = driver.jail.groups().of_process(process.pid());
        let leftovers: Vec<PathBuf> = [known.socket.clone(), pipe.clone()].into_iter().chain(group).collect();
        let api = Api::new(&known.socket);
        let clear = || leftovers.iter().for_each(|path| files::discard(path));
        let found = async {
            if !api.has_machine().await? {
                return Ok(None);
            }
            let mut events = Events::open(&pipe)?;
            events.forget();
            Ok(Some(events))
        };
        match found.await {
            Ok(Some(events)) => Ok(Self::supervise(process, api, events, known.directory, leftovers)),
            // Whoever was to tell it what to do is gone.
            Ok(None) => {
                process.kill().await?;
                clear();
                Err(Error::Gone(Exit::Signal(Signal::KILL.as_raw())))
            }
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
        api: Api,
        events: Events,
        directory: PathBuf,
        leftovers: Vec<PathBuf>,
    ) -> Arc<Self> {
        let process = Arc::new(process);
        let listening = tokio::spawn(listen(events, process.clone()));
        let witness = move |end| async move {
            match timeout(LAST_WORDS, listening).await {
                Ok(Ok(heard)) => heard.of(end),
                _ => (end, None),
            }
        };
        let supervised = Supervised::watch(process, directory.clone(), leftovers, witness);
        Arc::new(Self { supervised, api, directory, saving: Mutex::default() })
    }
}

async fn describe(api: &Api, machine: &Machine<'_>, taps: Vec<OwnedFd>) -> Result<(), Error> {
    api.create(&machine.to_boot()).await?;
    for (index, tap) in taps.into_iter().enumerate() {
        if let Some(link) = machine.link(index) {
            api.add_link(&link, tap).await?;
        }
    }
    Ok(())
}

/// What was heard of a process until its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heard {
    cause: Option<Cause>,
    /// The end was ours, because of the cause.
    ours: bool,
}

impl Heard {
    fn of(self, end: End) -> (End, Option<Cause>) {
        match end {
            End::Signal(_) if self.ours => (End::Status(0), self.cause),
            end => (end, self.cause),
        }
    }
}

/// Listens until the process is gone. A guest that resets itself would be
/// started again by the same process; a boot is a new start, so it ends here.
async fn listen(mut events: Events, process: Arc<Process>) -> Heard {
    let mut heard = Heard::default();
    while let Some(cause) = events.cause().await {
        // A panic is followed by the reset that it causes, which adds nothing.
        heard.cause = heard.cause.or(Some(cause));
        if cause == Cause::Reset {
            heard.ours = true;
            if let Err(error) = process.signal(Signal::KILL) {
                tracing::error!(%error, pid = process.pid(), "cannot end a machine that reset itself");
            }
        }
    }
    heard
}

#[async_trait::async_trait]
impl Vm for CloudVm {
    fn pid(&self) -> i32 {
        self.supervised.process.pid()
    }

    fn started(&self) -> u64 {
        self.supervised.process.started()
    }

    async fn pause(&self) -> Result<(), Error> {
        self.supervised.or_gone(self.api.pause().await).await
    }

    async fn resume(&self) -> Result<(), Error> {
        self.supervised.or_gone(self.api.resume().await).await
    }

    async fn save(&self) -> Result<(), Error> {
        let _alone = self.saving.lock().await;
        self.supervised.or_gone(save(&self.api, &self.directory).await).await
    }

    async fn resize_disk(&self, size: ByteSize) -> Result<(), Error> {
        jail::allow_file_size(&self.supervised.process, size.bytes())?;
        self.supervised.or_gone(self.api.resize_disk(DISK_ID, size.bytes()).await).await
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

async fn save(api: &Api, directory: &Path) -> Result<(), Error> {
    const OPERATION: &str = "saving device state";
    let place = directory.to_owned();
    let saving = blocking(OPERATION, move || {
        // The directory's group has the number of the process's user.
        let files =
            files::Files::open(&place).map_err(|source| Error::Io { operation: OPERATION, source })?;
        Saving::begin(&place, files.uid())
    })
    .await?;
    api.save(SAVING).await?;
    blocking(OPERATION, move || saving.finish()).await
}

async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::Io { operation, source: error.into() })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_of_our_own_is_judged_by_its_cause() {
        let reset = Heard { cause: Some(Cause::Reset), ours: true };
        assert_eq!(reset.of(End::Signal(9)), (End::Status(0), Some(Cause::Reset)));
        assert_eq!(Heard::default().of(End::Signal(9)), (End::Signal(9), None));
        let off = Heard { cause: Some(Cause::Shutdown), ours: false };
        assert_eq!(off.of(End::Status(0)), (End::Status(0), Some(Cause::Shutdown)));
    }
}
