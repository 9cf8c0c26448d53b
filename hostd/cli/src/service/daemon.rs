//! One daemon of ours: started, watched, started again, stopped.

use super::{backoff::Backoff, place::Place, process::Recorded};
use crate::context;
use berth_types::{Code, Refusal};
use std::{
    convert::Infallible,
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

#[derive(Debug)]
pub struct Daemon {
    /// As the pid file calls it: `hostd`, `gateway`.
    name: &'static str,
    program: PathBuf,
    config: PathBuf,
    place: Place,
    child: Option<Child>,
    since: Instant,
    backoff: Backoff,
}

impl Daemon {
    pub fn new(name: &'static str, config: PathBuf, place: Place) -> Self {
        let program = context::beside(&format!("berth-{name}"));
        let since = Instant::now();
        Self { name, program, config, place, child: None, since, backoff: Backoff::default() }
    }

    pub fn start(&mut self) -> Result<(), Refusal> {
        self.spawn().map_err(|error| {
            let message = format!("cannot start {} ({error})", self.program.display());
            Refusal::new(Code::Failed, message, "build it with 'make build'")
        })
    }

    fn spawn(&mut self) -> io::Result<()> {
        let child = Command::new(&self.program)
            .arg("--config")
            .arg(&self.config)
            .stdin(Stdio::null())
            // Ctrl-C is the supervisor's to handle: daemons stop in their order.
            .process_group(0)
            .spawn()?;
        let recorded = child.id().and_then(|pid| Recorded::of(i32::try_from(pid).ok()?));
        self.child = Some(child);
        self.since = Instant::now();
        match recorded {
            Some(recorded) => self.place.record(self.name, recorded),
            // It has ended already, which whoever watches it will see.
            None => Ok(()),
        }
    }

    /// Waits for its end; never, if it is not running.
    pub async fn ended(&mut self) -> ExitStatus {
        let Some(child) = &mut self.child else { return std::future::pending().await };
        match child.wait().await {
            Ok(status) => {
                self.child = None;
                self.place.forget(self.name);
                status
            }
            // Only a child that is not ours cannot be waited for.
            Err(_) => std::future::pending().await,
        }
    }

    /// Starts it again whenever it ends, until nobody asks for that any more.
    pub async fn keep(&mut self) -> Infallible {
        loop {
            let why =
                if self.child.is_some() { self.ended().await.to_string() } else { "it is not there".into() };
            let wait = self.backoff.after(self.since.elapsed());
            say!("berth: {} ended ({why}): starting it again in {wait:?}", self.name);
            tokio::time::sleep(wait).await;
            self.since = Instant::now();
            if let Err(refusal) = self.start() {
                say!("berth: {refusal}");
            }
        }
    }

    /// Asks it to end, and makes it end if it does not listen.
    pub async fn stop(&mut self, patience: Duration) {
        let Some(running) = self.running() else { return };
        running.end(patience).await;
        self.ended().await;
    }

    /// Waits for it to end by itself; false if it has not within the limit.
    pub async fn finish(&mut self, limit: Duration) -> bool {
        self.child.is_none() || tokio::time::timeout(limit, self.ended()).await.is_ok()
    }

    fn running(&self) -> Option<super::process::Running> {
        let pid = self.child.as_ref()?.id()?;
        Recorded::of(i32::try_from(pid).ok()?)?.open()
    }
}
