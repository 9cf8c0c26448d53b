//! QMP: QEMU's control protocol, with a limit on every question.
//!
//! QEMU talks to one client at a time and forgets nothing when it leaves, so a
//! connection that broke is simply made again by the next question.

use crate::{
    Error,
    verdict::Cause,
    wire::{Luggage, Writer},
};
use futures_core::Stream;
use qapi::{
    Command, ExecuteError,
    futures::{QapiService, QmpStreamTokio},
    qmp::{Event, MigrationStatus, QmpCommand, ShutdownCause},
};
use std::{
    future::{Future, poll_fn},
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::UnixStream,
    sync::{Mutex, watch},
    task::JoinHandle,
    time::timeout,
};

/// For one question. `stop` first waits for the guest's disk writes.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// What QEMU has said of its own accord.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) shutdown: Option<ShutdownCause>,
    pub(super) migration: Option<MigrationStatus>,
}

#[derive(Debug)]
pub(super) struct Qmp {
    socket: PathBuf,
    seen: watch::Sender<Seen>,
    connection: Mutex<Option<Connection>>,
}

struct Connection {
    service: Arc<QapiService<QmpStreamTokio<Writer>>>,
    luggage: Luggage,
    reader: JoinHandle<()>,
    /// Its sender is the reader's, and goes with it.
    open: watch::Receiver<()>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Qmp {
    /// Resolves when QEMU answers.
    pub(super) async fn connect(socket: PathBuf, limit: Duration) -> Result<Self, Error> {
        let qmp = Self { socket, seen: watch::Sender::default(), connection: Mutex::new(None) };
        within("connecting to the hypervisor", limit, qmp.service()).await?;
        Ok(qmp)
    }

    /// Before a save or a load, whose end is then no older one's.
    pub(super) fn forget_migration(&self) -> watch::Receiver<Seen> {
        self.seen.send_modify(|seen| seen.migration = None);
        self.seen.subscribe()
    }

    pub(super) fn cause(&self) -> Option<Cause> {
        Some(match self.seen.borrow().shutdown? {
            ShutdownCause::guest_shutdown | ShutdownCause::host_qmp_quit => Cause::Shutdown,
            ShutdownCause::guest_panic => Cause::Panic,
            ShutdownCause::guest_reset => Cause::Reset,
            ShutdownCause::host_signal => Cause::Signal,
            _ => return None,
        })
    }

    pub(super) async fn ask<C>(&self, operation: &'static str, command: C) -> Result<C::Ok, Error>
    where
        C: Command + QmpCommand,
    {
        let ask = async { self.service().await?.0.execute(command).await.map_err(Failure::from) };
        within(operation, LIMIT, ask).await
    }

    /// Asks with a descriptor beside the question.
    pub(super) async fn hand<C>(
        &self,
        operation: &'static str,
        command: C,
        fd: OwnedFd,
    ) -> Result<C::Ok, Error>
    where
        C: Command + QmpCommand,
    {
        let ask = async {
            let (service, luggage) = self.service().await?;
            luggage.put(fd);
            service.execute(command).await.map_err(Failure::from)
        };
        within(operation, LIMIT, ask).await
    }

    /// Waits until QEMU has said its last word: its end of the connection closes.
    pub(super) async fn drained(&self) {
        let open = self.connection.lock().await.as_ref().map(|connection| connection.open.clone());
        if let Some(mut open) = open {
            while open.changed().await.is_ok() {}
        }
    }

    async fn service(&self) -> Result<(Arc<QapiService<QmpStreamTokio<Writer>>>, Luggage), Failure> {
        let mut held = self.connection.lock().await;
        if held.as_ref().is_some_and(|connection| connection.reader.is_finished()) {
            *held = None;
        }
        let connection = match held.as_mut() {
            Some(connection) => connection,
            None => held.insert(self.open().await?),
        };
        Ok((connection.service.clone(), connection.luggage.clone()))
    }

    async fn open(&self) -> Result<Connection, Failure> {
        let (read, write) = UnixStream::connect(&self.socket).await?.into_split();
        let luggage = Luggage::default();
        let greeted = QmpStreamTokio::open_split(read, Writer::new(write, luggage.clone())).await?;
        let (service, events) = greeted.negotiate().await?.into_parts();
        let seen = self.seen.clone();
        let (alive, open) = watch::channel(());
        let reader = tokio::spawn(async move {
            let _alive = alive;
            let mut events = pin!(events);
            while let Some(event) = poll_fn(|cx| events.as_mut().poll_next(cx)).await {
                match event {
                    Ok(event) => note(&seen, &event),
                    Err(error) => tracing::debug!(%error, "a message of the hypervisor does not parse"),
                }
            }
        });
        Ok(Connection { service: Arc::new(service), luggage, reader, open })
    }
}

fn note(seen: &watch::Sender<Seen>, event: &Event) {
    match event {
        Event::SHUTDOWN { data, .. } => seen.send_modify(|seen| seen.shutdown = Some(data.reason)),
        Event::MIGRATION { data, .. } => seen.send_modify(|seen| seen.migration = Some(data.status)),
        _ => {}
    }
}

/// What can go wrong with one question, before it is known which it was.
enum Failure {
    Io(io::Error),
    Refused(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<ExecuteError> for Failure {
    fn from(error: ExecuteError) -> Self {
        match error {
            ExecuteError::Qapi(error) => Self::Refused(error.desc),
            ExecuteError::Io(error) => Self::Io(error),
        }
    }
}

async fn within<T>(
    operation: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Error> {
    match timeout(limit, work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(Failure::Io(source))) => Err(Error::Io { operation, source }),
        Ok(Err(Failure::Refused(message))) => Err(Error::Refused { operation, message }),
        Err(_) => Err(Error::Timeout { operation, limit }),
    }
}
