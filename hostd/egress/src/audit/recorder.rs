//! The way to the log from everywhere else. Events queue up here; whoever fills
//! the queue waits, so that a machine cannot outrun the disk.

use super::log::Log;
use berth_types::AuditEvent;
use jiff::Timestamp;
use std::time::Duration;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

const QUEUE: usize = 4096;
const BATCH: usize = 256;
/// What is not signed yet is signed when it has been quiet for this long.
const QUIET: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Recorder(mpsc::Sender<Item>);

#[derive(Debug)]
enum Item {
    Event(Timestamp, AuditEvent),
    /// Answered when everything before is in the files.
    Written(oneshot::Sender<()>),
    /// The same, signed and synced.
    Settle(oneshot::Sender<()>),
}

impl Recorder {
    pub fn start(log: Log) -> Self {
        let (sender, items) = mpsc::channel(QUEUE);
        tokio::spawn(write(log, items));
        Self(sender)
    }

    pub async fn record(&self, event: AuditEvent) {
        self.record_at(Timestamp::now(), event).await;
    }

    pub async fn record_at(&self, time: Timestamp, event: AuditEvent) {
        // It fails only when the runtime is ending.
        let _ = self.0.send(Item::Event(time, event)).await;
    }

    /// Returns when everything recorded so far can be read.
    pub async fn written(&self) {
        self.wait(Item::Written).await;
    }

    /// Returns when everything recorded so far is in the files, signed.
    pub async fn settle(&self) {
        self.wait(Item::Settle).await;
    }

    async fn wait(&self, item: fn(oneshot::Sender<()>) -> Item) {
        let (done, waiting) = oneshot::channel();
        if self.0.send(item(done)).await.is_ok() {
            let _ = waiting.await;
        }
    }
}

async fn write(mut log: Log, mut items: mpsc::Receiver<Item>) {
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let quiet = match timeout(QUIET, items.recv_many(&mut batch, BATCH)).await {
            Ok(0) => return,
            Ok(_) => false,
            Err(_) => true,
        };
        let work = std::mem::take(&mut batch);
        let written = tokio::task::spawn_blocking(move || {
            take(&mut log, work, quiet);
            log
        });
        match written.await {
            Ok(back) => log = back,
            Err(error) => {
                tracing::error!(%error, "the audit log's writer died");
                return;
            }
        }
    }
}

fn take(log: &mut Log, items: Vec<Item>, quiet: bool) {
    let report = |result: Result<(), super::AuditError>| {
        if let Err(error) = result {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::error!(%error, cause, "the audit log");
        }
    };
    for item in items {
        match item {
            Item::Event(time, event) => report(log.append(time, event)),
            Item::Written(done) => {
                let _ = done.send(());
            }
            Item::Settle(done) => {
                report(log.checkpoint());
                let _ = done.send(());
            }
        }
    }
    if quiet {
        report(log.checkpoint());
    }
}
