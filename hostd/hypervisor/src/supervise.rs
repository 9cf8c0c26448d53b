//! What is the same for every hypervisor that runs: somebody waits for its end
//! and reaps it, keeps its logs small, and says how it ended.

use crate::{
    Error, Exit,
    files::{self, CONSOLE, LOG},
    process::{End, Process},
    verdict::{BOOTED, Cause, RESTORED, verdict},
};
use rustix::process::Signal;
use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, time::timeout};

/// For a killed process to be gone.
const LIMIT: Duration = Duration::from_secs(20);
/// For a dead process's last words to arrive.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often logs are looked at, that no guest fills the pool with its console.
const LOGS: Duration = Duration::from_secs(10);
/// Enough of a console for a panic's trace.
const CONSOLE_TAIL: u64 = 64 * 1024;

/// A process that is watched until its end.
#[derive(Debug)]
pub(crate) struct Supervised {
    pub(crate) process: Arc<Process>,
    exit: watch::Receiver<Option<Exit>>,
}

impl Supervised {
    /// Watches a process. `leftovers` are removed when it has ended; `witness`
    /// is then asked what the hypervisor said, and may know better how it ended.
    pub(crate) fn watch<F>(
        process: Arc<Process>,
        directory: PathBuf,
        leftovers: Vec<PathBuf>,
        witness: impl FnOnce(End) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = (End, Option<Cause>)> + Send + 'static,
    {
        let (sender, exit) = watch::channel(None);
        let watched = process.clone();
        // It ends with the process, not with the Vm: somebody has to reap.
        tokio::spawn(async move {
            let end = tokio::select! {
                end = watched.ended() => end,
                never = tend(&directory) => match never {},
            };
            let (end, cause) = witness(end).await;
            leftovers.iter().for_each(|path| files::discard(path));
            sender.send_replace(Some(judge(end, cause, &directory)));
        });
        Self { process, exit }
    }

    pub(crate) async fn wait(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.unwrap_or(Exit::Unknown),
            // Only if the runtime is being shut down.
            Err(_) => Exit::Unknown,
        }
    }

    pub(crate) async fn kill(&self) -> Result<(), Error> {
        self.process.signal(Signal::KILL)?;
        timeout(LIMIT, self.wait())
            .await
            .map(drop)
            .map_err(|_| Error::Timeout { operation: "ending the hypervisor", limit: LIMIT })
    }

    /// A question that a process has died over is answered by its end.
    pub(crate) async fn or_gone<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        match result {
            Err(error @ Error::Io { .. }) => match timeout(2 * LAST_WORDS, self.wait()).await {
                Ok(exit) => Err(Error::Gone(exit)),
                Err(_) => Err(error),
            },
            result => result,
        }
    }
}

/// A process that does not answer: it may have ended while we knocked.
pub(crate) async fn ended_meanwhile(process: &Process, directory: &Path) -> Option<Exit> {
    let end = timeout(LAST_WORDS, process.ended()).await.ok()?;
    Some(judge(end, None, directory))
}

fn judge(end: End, cause: Option<Cause>, directory: &Path) -> Exit {
    verdict(end, cause, &files::tail(directory, CONSOLE, CONSOLE_TAIL))
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

/// A hypervisor that refuses to start says why in its log, and ends.
pub(crate) async fn explain(error: Error, process: Option<&Process>, directory: &Path) -> Error {
    let Some(process) = process else { return error };
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
    one_line(last.lines().skip(1), "; ")
}

/// Words of a hypervisor, fit to be shown.
pub(crate) fn one_line<'a>(words: impl Iterator<Item = &'a str>, between: &str) -> String {
    let words: Vec<&str> = words.map(str::trim).filter(|line| !line.is_empty()).collect();
    berth_types::text::plain(&words.join(between), 300)
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
