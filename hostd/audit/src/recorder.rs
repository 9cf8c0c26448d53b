//! The way to the logs from everywhere else. Events queue up here; whoever fills
//! the queue waits, so that a machine cannot outrun the disk.

use super::{
    error::AuditError,
    log::Log,
    query::{Query, query},
    throttle::Throttle,
};
use berth_types::{AuditEntry, AuditEvent, UserId};
use jiff::Timestamp;
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};

const QUEUE: usize = 4096;
const BATCH: usize = 256;
/// What is not signed yet is signed when it has been quiet for this long.
const QUIET: Duration = Duration::from_secs(5);
/// Readings of all users together at a time.
const READINGS: usize = 2;
/// Readings of one user, of which one goes on and the others wait.
const OF_A_USER: usize = 4;

#[derive(Clone, Debug)]
pub struct Recorder {
    items: mpsc::Sender<Item>,
    directory: PathBuf,
    readings: Arc<Semaphore>,
    /// Who reads; `None` is the operator.
    readers: Arc<Mutex<HashMap<Option<UserId>, Arc<Semaphore>>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum BusyReading {
    /// As many readings of this user as there may be are under way.
    #[error("the log is being read already")]
    Busy,
    #[error(transparent)]
    Failed(#[from] AuditError),
}

#[derive(Debug)]
enum Item {
    Event(Timestamp, AuditEvent),
    /// Answered when everything before is in the files.
    Written(oneshot::Sender<()>),
    /// The same, what was only counted included, signed and synced.
    Settle(oneshot::Sender<()>),
}

impl Recorder {
    /// `deeds` has logins, verbs and states, `egress` decisions of the bridge.
    pub fn start(deeds: Log, egress: Log) -> Self {
        let (sender, items) = mpsc::channel(QUEUE);
        let directory = deeds.directory().to_owned();
        tokio::spawn(write(Logs { deeds, egress, throttle: Throttle::default() }, items));
        let (readings, readers) = (Arc::new(Semaphore::new(READINGS)), Arc::default());
        Self { items: sender, directory, readings, readers }
    }

    pub async fn record(&self, event: AuditEvent) {
        self.record_at(Timestamp::now(), event).await;
    }

    pub async fn record_at(&self, time: Timestamp, event: AuditEvent) {
        // It fails only when the runtime is ending.
        let _ = self.items.send(Item::Event(time, event)).await;
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
        if self.items.send(item(done)).await.is_ok() {
            let _ = waiting.await;
        }
    }

    /// The newest entries that fit. A user has one reading at a time, and all users
    /// together a few: each may look through all of the files.
    pub async fn read(&self, wanted: Query) -> Result<Vec<AuditEntry>, BusyReading> {
        let reader = Reader::admit(self, wanted.user.clone()).ok_or(BusyReading::Busy)?;
        let Ok(_first) = reader.turn.acquire().await else { return Err(BusyReading::Busy) };
        self.written().await;
        let Ok(turn) = self.readings.clone().acquire_owned().await else { return Err(BusyReading::Busy) };
        let directory = self.directory.clone();
        let reading = tokio::task::spawn_blocking(move || {
            // With the reading, which goes on where its caller hangs up.
            let _turn = turn;
            query(&directory, &wanted)
        });
        Ok(reading.await.map_err(|error| AuditError::Read(std::io::Error::other(error)))??)
    }
}

/// One of a user's readings; given back when dropped.
struct Reader<'a> {
    recorder: &'a Recorder,
    user: Option<UserId>,
    /// One permit: the reading that goes on has it.
    turn: Arc<Semaphore>,
}

impl<'a> Reader<'a> {
    fn admit(recorder: &'a Recorder, user: Option<UserId>) -> Option<Self> {
        let mut readers = recorder.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = readers.entry(user.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))).clone();
        // The map's own, this one, and one of each other reading.
        (Arc::strong_count(&turn) <= OF_A_USER + 1).then(|| Self { recorder, user, turn })
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut readers = self.recorder.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::strong_count(&self.turn) == 2 {
            readers.remove(&self.user);
        }
    }
}

async fn write(mut logs: Logs, mut items: mpsc::Receiver<Item>) {
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let quiet = match timeout(QUIET, items.recv_many(&mut batch, BATCH)).await {
            Ok(0) => return,
            Ok(_) => false,
            Err(_) => true,
        };
        let work = std::mem::take(&mut batch);
        let written = tokio::task::spawn_blocking(move || {
            logs.take(work, quiet);
            logs
        });
        match written.await {
            Ok(back) => logs = back,
            Err(error) => {
                tracing::error!(%error, "the audit log's writer died");
                return;
            }
        }
    }
}

struct Logs {
    deeds: Log,
    egress: Log,
    throttle: Throttle,
}

impl Logs {
    fn take(&mut self, items: Vec<Item>, quiet: bool) {
        for item in items {
            match item {
                Item::Event(time, event) => {
                    if let Some(event) = self.throttle.take(event, Instant::now()) {
                        self.append(time, event);
                    }
                }
                Item::Written(done) => {
                    let _ = done.send(());
                }
                Item::Settle(done) => {
                    let rest = self.throttle.rest(Instant::now());
                    self.append_all(rest);
                    self.checkpoint();
                    let _ = done.send(());
                }
            }
        }
        let due = self.throttle.due(Instant::now());
        self.append_all(due);
        if quiet {
            self.checkpoint();
        }
    }

    fn append_all(&mut self, events: Vec<AuditEvent>) {
        events.into_iter().for_each(|event| self.append(Timestamp::now(), event));
    }

    fn append(&mut self, time: Timestamp, event: AuditEvent) {
        match &event {
            AuditEvent::Egress(_) => report(self.egress.append(time, event)),
            // Neither log is ever without a first line.
            AuditEvent::Started { .. } => {
                report(self.egress.append(time, event.clone()));
                report(self.deeds.append(time, event));
            }
            _ => report(self.deeds.append(time, event)),
        }
    }

    fn checkpoint(&mut self) {
        report(self.egress.checkpoint());
        report(self.deeds.checkpoint());
    }
}

fn report(result: Result<(), AuditError>) {
    if let Err(error) = result {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        tracing::error!(%error, cause, "the audit log");
    }
}
