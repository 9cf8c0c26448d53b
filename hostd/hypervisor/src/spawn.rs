//! Starts a hypervisor's process: its files and its control socket are there before it
//! is, and nothing stays of a start that fails. Nothing ties its life to hostd's.

use crate::{
    Error, Known, Launch, Origin,
    files::{self, CONSOLE, LOG},
    jail::{Jail, Program},
    process::Process,
    tasks::Expected,
    verdict::{BOOTED, RESTORED},
};
use rustix::process::Signal;
use std::{
    fs::File,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
};

/// A start that is not complete: dropped half-way, it leaves nothing.
pub(crate) struct Newborn {
    process: Option<Process>,
    /// Removed unless it grows up.
    leftovers: Vec<PathBuf>,
    /// Its control group, which goes after it.
    group: Option<PathBuf>,
}

impl Newborn {
    /// What is at these paths is gone if the start is not completed.
    pub(crate) fn expected(leftovers: Vec<PathBuf>) -> Self {
        Self { process: None, leftovers, group: None }
    }

    /// Starts its process.
    pub(crate) fn bear(&mut self, jail: &Jail, launch: &Launch, program: Program<'_>) -> Result<(), Error> {
        let (process, group) = jail.start(launch, program)?;
        self.group = group.map(|group| group.path().to_owned());
        self.process = Some(process);
        Ok(())
    }

    /// Looks at every thread of its process. To be asked before a guest runs in it:
    /// dropped after a refusal, it is gone.
    pub(crate) fn confined(&self, expected: &Expected) -> Result<(), Error> {
        self.process.as_ref().map_or(Ok(()), |process| confined(process, expected))
    }

    pub(crate) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// The process, and what is to be removed when it has ended.
    pub(crate) fn grown(mut self) -> Option<(Process, Vec<PathBuf>)> {
        let mut leftovers = std::mem::take(&mut self.leftovers);
        leftovers.extend(self.group.take());
        self.process.take().map(|process| (process, leftovers))
    }
}

impl Drop for Newborn {
    fn drop(&mut self) {
        for path in self.leftovers.drain(..) {
            files::discard(&path);
        }
        let group = self.group.take();
        let Some(process) = self.process.take() else {
            // It did not come to one: nobody is in its group.
            group.iter().for_each(|group| files::discard(group));
            return;
        };
        let _ = process.signal(Signal::KILL);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                process.ended().await;
                // No other start has the same group, so nobody misses it.
                group.as_deref().map(files::discard);
            });
        }
    }
}

/// What each thread of a machine's process has to have.
pub(crate) fn expected(launch: &Launch, device_group: Option<u32>) -> Result<Expected, Error> {
    Expected::started(launch.uid, device_group, launch.netns.as_fd())
        .map_err(|source| Error::Io { operation: "looking at the machine's network namespace", source })
}

const LOOKING: &str = "looking at the hypervisor's confinement";

fn confined(process: &Process, expected: &Expected) -> Result<(), Error> {
    let checked = expected.check(process.pid()).map_err(|source| Error::Io { operation: LOOKING, source })?;
    checked.map_err(|unconfined| {
        tracing::error!(pid = process.pid(), %unconfined, "a hypervisor is not confined, and is ended");
        Error::Refused { operation: LOOKING, message: unconfined.to_string() }
    })
}

/// Looks at every thread of a process that an earlier hostd started. If that was of a
/// version that confined less, the process is ended: no guest is to run in it.
pub(crate) async fn confined_or_ended(
    process: &Process,
    known: &Known,
    uid: u32,
    device_group: Option<u32>,
) -> Result<(), Error> {
    let expected = Expected::found(uid, device_group);
    let expected = expected.map_err(|source| Error::Io { operation: LOOKING, source })?;
    let checked = confined(process, &expected);
    match &checked {
        Err(Error::Refused { .. }) => crate::end(known).await?,
        // It may be about to end, which the driver finds out.
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        _ => {}
    }
    checked
}

/// The files that a start begins with.
pub(crate) struct Laid {
    /// In bytes, whole MiB.
    pub(crate) memory: u64,
    pub(crate) console: File,
    pub(crate) log: File,
}

/// RAM, new or as it was left, and both logs.
pub(crate) fn lay_out(launch: &Launch) -> Result<Laid, Error> {
    let directory = &launch.directory;
    let memory = launch.memory.0 >> 20 << 20;
    let first_line = match launch.origin {
        Origin::Boot => {
            files::fresh_ram(directory, memory, launch.uid)?;
            BOOTED
        }
        Origin::Saved => {
            files::saved_ram(directory, memory, launch.uid)?;
            RESTORED
        }
    };
    let logs = |source| Error::Io { operation: "opening the machine's logs", source };
    let console = files::log(directory, CONSOLE, launch.uid, first_line).map_err(logs)?;
    let log = files::log(directory, LOG, launch.uid, first_line).map_err(logs)?;
    Ok(Laid { memory, console, log })
}

/// Bound and listening before there is a process, so that nobody has to wait
/// for a socket to appear.
pub(crate) fn listen(socket: &Path) -> Result<OwnedFd, Error> {
    let bind = || {
        files::remove(socket)?;
        UnixListener::bind(socket).map(OwnedFd::from)
    };
    bind().map_err(|source| Error::Io { operation: "making the control socket", source })
}

/// For a process's standard input, and for what nobody reads.
pub(crate) fn null() -> Result<OwnedFd, Error> {
    let null = File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    null.map_err(|source| Error::Io { operation: "opening /dev/null", source })
}
