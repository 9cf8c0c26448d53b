//! QMP: QEMU's control protocol, with a limit on every question.
//!
//! QEMU talks to one client at a time and forgets nothing when it leaves, so a
//! connection that broke is simply made again by the next question.

use crate::{
    Error,
    pausing::{self, is_timeout},
    supervise::one_line,
    verdict::Cause,
    wire::{Lines, Luggage, Pace, Writer},
};
use futures_core::Stream;
use qapi::{
    Command, ExecuteError,
    futures::{QapiService, QmpStreamTokio},
    qmp::{self, Event, MigrationStatus, QmpCommand, ShutdownCause},
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

/// Messages that make no sense before a connection is given up. An answer to a question
/// that was given up is one.
const FAULTS: u32 = 8;

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
        self.within(operation, ask).await
    }

    /// A connection over which an answer is missing is given up: QEMU may know no ids,
    /// and the next answer would be taken for that one.
    async fn within<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Error> {
        let answer = within(operation, LIMIT, work).await;
        if let (Err(Error::Timeout { .. }), Ok(mut held)) = (&answer, self.connection.try_lock()) {
            *held = None;
        }
        answer
    }

    pub(super) async fn pause(&self) -> Result<(), Error> {
        let pause = || async { self.ask("pausing", qmp::stop {}).await.map(drop) };
        pausing::twice(&self.socket, is_timeout, pause).await
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
        self.within(operation, ask).await
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
        let greeted =
            QmpStreamTokio::open_split(Lines::new(read), Writer::new(write, luggage.clone())).await?;
        let (service, events) = greeted.negotiate().await?.into_parts();
        let (seen, socket) = (self.seen.clone(), self.socket.clone());
        let (alive, open) = watch::channel(());
        let reader = tokio::spawn(async move {
            let _alive = alive;
            let (mut events, mut pace, mut faults) = (pin!(events), Pace::new(), 0);
            while let Some(event) = poll_fn(|cx| events.as_mut().poll_next(cx)).await {
                match event {
                    Ok(event) => note(&seen, &event),
                    Err(error) => {
                        tracing::warn!(%error, socket = %socket.display(), "a hypervisor does not keep to QMP");
                        faults += 1;
                    }
                }
                if faults == FAULTS {
                    break;
                }
                pace.spend().await;
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
            ExecuteError::Qapi(error) => Self::Refused(one_line(error.desc.lines(), "; ")),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{LINE_MAX, expire};
    use berth_types::MachineId;
    use tokio::{
        io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
        net::UnixListener,
    };

    const GREETING: &str =
        r#"{"QMP":{"version":{"qemu":{"micro":22,"minor":2,"major":7},"package":""},"capabilities":[OOB]}}"#;

    /// A QEMU that a case has a script for.
    struct Peer(BufReader<UnixStream>);

    impl Peer {
        async fn accept(listener: &UnixListener) -> Self {
            Self(BufReader::new(listener.accept().await.unwrap().0))
        }

        async fn say(&mut self, words: &str) {
            self.0.write_all(format!("{words}\n").as_bytes()).await.unwrap();
        }

        /// The next question and its id.
        async fn asked(&mut self) -> (String, serde_json::Value) {
            let mut line = String::new();
            self.0.read_line(&mut line).await.unwrap();
            let question: serde_json::Value = serde_json::from_str(&line).unwrap();
            (question["execute"].as_str().unwrap().to_owned(), question["id"].clone())
        }

        async fn answer(&mut self, id: &serde_json::Value) {
            self.say(&serde_json::json!({ "return": {}, "id": id }).to_string()).await;
        }

        /// As far as a client that may ask.
        async fn greeted(listener: &UnixListener) -> Self {
            let mut peer = Self::accept(listener).await;
            peer.say(&GREETING.replace("OOB", "\"oob\"")).await;
            let (command, id) = peer.asked().await;
            assert_eq!(command, "qmp_capabilities");
            peer.answer(&id).await;
            peer
        }

        /// Says this until nobody listens: how many bytes that took.
        async fn flood(&mut self, words: &str) -> usize {
            let mut written = 0;
            while self.0.write_all(words.as_bytes()).await.is_ok() {
                written += words.len();
            }
            written
        }
    }

    /// A case beside a script. Both have to come to their ends.
    async fn beside(script: impl AsyncFnOnce(UnixListener), case: impl AsyncFnOnce(PathBuf)) {
        let socket = std::env::temp_dir().join(format!("berth-qmp-{}", MachineId::random()));
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::join!(script(listener), case(socket.clone()));
        std::fs::remove_file(&socket).unwrap();
    }

    #[tokio::test]
    async fn a_pause_that_is_not_answered_in_time_is_tried_once_more() {
        beside(
            async |listener| {
                let mut first = Peer::greeted(&listener).await;
                assert_eq!(first.asked().await.0, "stop");
                expire(LIMIT).await;
                let mut second = Peer::greeted(&listener).await;
                let (command, id) = second.asked().await;
                assert_eq!(command, "stop");
                second.answer(&id).await;
                assert_eq!(second.asked().await.0, "stop");
                expire(LIMIT).await;
                let mut third = Peer::greeted(&listener).await;
                assert_eq!(third.asked().await.0, "stop");
                expire(LIMIT).await;
            },
            async |socket| {
                let qmp = Qmp::connect(socket, LIMIT).await.unwrap();
                qmp.pause().await.unwrap();
                let failed = qmp.pause().await;
                assert!(matches!(failed, Err(Error::Timeout { .. })), "{failed:?}");
            },
        )
        .await;
    }

    /// Without ids, qapi has one question at a time, and panics at another one.
    #[tokio::test]
    async fn one_that_knows_no_ids_and_never_answers_meets_the_limit_every_time() {
        beside(
            async |listener| {
                for _ in 0..3 {
                    let mut peer = Peer::accept(&listener).await;
                    peer.say(&GREETING.replace("OOB", "")).await;
                    peer.asked().await;
                    peer.say(r#"{"return":{}}"#).await;
                    assert_eq!(peer.asked().await.0, "cont");
                    expire(LIMIT).await;
                }
            },
            async |socket| {
                let qmp = Qmp::connect(socket, LIMIT).await.unwrap();
                for _ in 0..3 {
                    let asked = qmp.ask("resuming", qmp::cont {}).await;
                    assert!(matches!(asked, Err(Error::Timeout { .. })), "{asked:?}");
                }
            },
        )
        .await;
    }

    #[tokio::test]
    async fn a_line_without_end_is_cut_off_wherever_it_comes() {
        // What a socket holds that nobody reads from, and one line.
        const MOST: usize = 2 * LINE_MAX + (1 << 20);
        beside(
            async |listener| {
                assert!(
                    Peer::accept(&listener).await.flood("aaaaaaaa").await < MOST,
                    "in place of a greeting"
                );
                let mut peer = Peer::greeted(&listener).await;
                peer.asked().await;
                assert!(peer.flood("[[[[[[[[").await < MOST, "in place of an answer");
            },
            async |socket| {
                let refused = Qmp::connect(socket.clone(), LIMIT).await.map(drop);
                assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
                let qmp = Qmp::connect(socket, LIMIT).await.unwrap();
                let asked = qmp.ask("resuming", qmp::cont {}).await;
                assert!(matches!(asked, Err(Error::Io { .. })), "{asked:?}");
            },
        )
        .await;
    }

    #[tokio::test]
    async fn answers_to_what_nobody_asked_end_the_connection_and_not_hostd() {
        beside(
            async |listener| {
                let mut peer = Peer::greeted(&listener).await;
                peer.asked().await;
                peer.flood("{\"return\":{},\"id\":4000000000}\n").await;
                let mut peer = Peer::greeted(&listener).await;
                let (_, id) = peer.asked().await;
                peer.say(
                    "{\"error\":{\"class\":\"GenericError\",\"desc\":\"no\\n\\u0007room\"},\"id\":ID}"
                        .replace("ID", &id.to_string())
                        .as_str(),
                )
                .await;
                peer.0.read_line(&mut String::new()).await.unwrap();
            },
            async |socket| {
                let qmp = Qmp::connect(socket, LIMIT).await.unwrap();
                let asked = qmp.ask("resuming", qmp::cont {}).await;
                assert!(matches!(asked, Err(Error::Io { .. })), "{asked:?}");
                let asked = qmp.ask("resuming", qmp::cont {}).await;
                let message = "no; room";
                assert!(
                    matches!(&asked, Err(Error::Refused { message: it, .. }) if it == message),
                    "{asked:?}"
                );
            },
        )
        .await;
    }
}
