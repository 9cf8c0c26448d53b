//! The REST socket, with a limit on every question and on every answer.

use super::request;
use crate::{
    Error,
    pausing::{self, is_timeout},
    supervise::one_line,
};
use cloud_hypervisor_client::models::{VmConfig, VmResizeDisk, VmSnapshotConfig, VmState};
use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::time::timeout;

/// For one question. A pause first waits for the guest's disk writes.
const LIMIT: Duration = Duration::from_secs(20);
/// For a start, a save or a restore: small, but the disk below may be busy.
const LONG: Duration = Duration::from_secs(60);
/// How Cloud Hypervisor says that a vCPU did not stop within a second.
const LATE: &str = "Timeout when waiting for signal";

#[derive(Debug)]
pub(super) struct Api {
    socket: PathBuf,
    /// A pause came too late. Some vCPUs may stand still, although the machine is
    /// said to be running, and would not be resumed.
    half_paused: AtomicBool,
}

/// What is of interest of a machine.
#[derive(Debug, Deserialize)]
struct Info {
    state: VmState,
}

impl Api {
    pub(super) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), half_paused: AtomicBool::new(false) }
    }

    /// Whether there is a machine that could go on: one that was described and
    /// not started, or was to be restored, is none.
    pub(super) async fn has_machine(&self) -> Result<bool, Error> {
        match self.state("connecting to the hypervisor").await {
            Ok(state) => Ok(matches!(state, VmState::Running | VmState::Paused)),
            Err(Error::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn create(&self, config: &VmConfig) -> Result<(), Error> {
        self.put("describing the machine", "vm.create", LONG, config).await
    }

    pub(super) async fn add_link(&self, link: &Value, tap: OwnedFd) -> Result<(), Error> {
        self.hand("adding a link", "vm.add-net", link, vec![tap]).await
    }

    pub(super) async fn boot(&self) -> Result<(), Error> {
        self.ask("starting the machine", "vm.boot", LONG).await
    }

    /// Loads the devices in `directory`, relative to the process's own.
    pub(super) async fn restore(
        &self,
        directory: &str,
        links: &[&str],
        taps: Vec<OwnedFd>,
    ) -> Result<(), Error> {
        let links: Vec<Value> = links.iter().map(|id| json!({ "id": id, "num_fds": 1 })).collect();
        let restore = json!({ "source_url": url(directory), "net_fds": links });
        self.hand("loading device state", "vm.restore", &restore, taps).await
    }

    pub(super) async fn save(&self, directory: &str) -> Result<(), Error> {
        let destination = VmSnapshotConfig { destination_url: Some(url(directory)) };
        self.put("saving device state", "vm.snapshot", LONG, &destination).await
    }

    pub(super) async fn pause(&self) -> Result<(), Error> {
        let paused = pausing::twice(&self.socket, is_late, || self.pause_once()).await;
        self.half_paused.store(paused.as_ref().is_err_and(is_late), Ordering::Relaxed);
        paused
    }

    /// Paused already is as good: it answers that with a refusal.
    async fn pause_once(&self) -> Result<(), Error> {
        let paused = self.ask("pausing", "vm.pause", LIMIT).await;
        self.unless(VmState::Paused, paused).await
    }

    pub(super) async fn resume(&self) -> Result<(), Error> {
        if self.half_paused.load(Ordering::Relaxed) {
            // Whole, it can be resumed.
            self.pause_once().await?;
            self.half_paused.store(false, Ordering::Relaxed);
        }
        let resumed = self.ask("resuming", "vm.resume", LIMIT).await;
        self.unless(VmState::Running, resumed).await
    }

    pub(super) async fn resize_disk(&self, id: &str, size: u64) -> Result<(), Error> {
        let desired_size = i64::try_from(size).ok();
        let resize = VmResizeDisk { id: Some(id.to_owned()), desired_size };
        self.put("resizing the disk", "vm.resize-disk", LIMIT, &resize).await
    }

    /// A refusal is none when the machine is in that state already.
    async fn unless(&self, state: VmState, result: Result<(), Error>) -> Result<(), Error> {
        let Err(error @ Error::Refused { .. }) = result else { return result };
        match self.state("asking for the machine's state").await {
            Ok(found) if found == state => Ok(()),
            _ => Err(error),
        }
    }

    async fn state(&self, operation: &'static str) -> Result<VmState, Error> {
        let request = request::send(&self.socket, Method::GET, "vm.info", String::new(), Vec::new());
        let answer = within(operation, LIMIT, request).await?;
        let info: Info =
            serde_json::from_str(&answer).map_err(|error| Error::Io { operation, source: error.into() })?;
        Ok(info.state)
    }

    async fn ask(&self, operation: &'static str, path: &str, limit: Duration) -> Result<(), Error> {
        let request = request::send(&self.socket, Method::PUT, path, String::new(), Vec::new());
        within(operation, limit, request).await.map(drop)
    }

    async fn put<T: Serialize + Sync>(
        &self,
        operation: &'static str,
        path: &str,
        limit: Duration,
        body: &T,
    ) -> Result<(), Error> {
        let body =
            serde_json::to_string(body).map_err(|error| Error::Io { operation, source: error.into() })?;
        let request = request::send(&self.socket, Method::PUT, path, body, Vec::new());
        within(operation, limit, request).await.map(drop)
    }

    /// Asks with descriptors beside the question.
    async fn hand(
        &self,
        operation: &'static str,
        path: &str,
        body: &Value,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Error> {
        let request = request::send(&self.socket, Method::PUT, path, body.to_string(), descriptors);
        within(operation, LONG, request).await.map(drop)
    }
}

async fn within(
    operation: &'static str,
    limit: Duration,
    request: impl Future<Output = std::io::Result<(hyper::StatusCode, String)>>,
) -> Result<String, Error> {
    match timeout(limit, request).await {
        Ok(Ok((status, body))) if status.is_success() => Ok(body),
        Ok(Ok((_, body))) => Err(Error::Refused { operation, message: words(&body) }),
        Ok(Err(source)) => Err(Error::Io { operation, source }),
        Err(_) => Err(Error::Timeout { operation, limit }),
    }
}

/// Neither done nor refused: some vCPUs were not stopped in time.
fn is_late(error: &Error) -> bool {
    is_timeout(error) || matches!(error, Error::Refused { message, .. } if message.contains(LATE))
}

/// An error is a list, from what was wanted to what was in its way; the first
/// links of that chain say only that a request failed.
fn words(body: &str) -> String {
    match serde_json::from_str::<Vec<String>>(body) {
        Ok(chain) => {
            let told = chain.len().min(3);
            let skipped = chain.len() - told;
            one_line(chain.iter().skip(skipped).map(String::as_str), ": ")
        }
        Err(_) if body.trim().is_empty() => "it did not say why".to_owned(),
        Err(_) => one_line(body.lines(), "; "),
    }
}

fn url(directory: &str) -> String {
    format!("file://{directory}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::expire;
    use std::sync::{Arc, Mutex};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixListener,
    };

    #[test]
    fn a_chain_of_errors_is_told_from_its_end() {
        let body =
            r#"["API error","Cannot boot","Cannot open disk","No such file or directory (os error 2)"]"#;
        assert_eq!(words(body), "Cannot boot: Cannot open disk: No such file or directory (os error 2)");
        assert_eq!(words(""), "it did not say why");
        assert_eq!(words("Internal\nServer\u{7} Error"), "Internal; Server Error");
    }

    /// A hypervisor that answers one question after the other with what a case says,
    /// the last answer again and again. What it was asked, in order.
    async fn with_answers(answers: &'static [&'static str], case: impl AsyncFnOnce(&Api)) -> Vec<String> {
        let socket = std::env::temp_dir().join(format!("berth-api-{}", berth_types::MachineId::random()));
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = asked.clone();
        let server = tokio::spawn(async move {
            for number in 0.. {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                let mut question = [0; 4096];
                let length = stream.read(&mut question).await.unwrap_or(0);
                let line = String::from_utf8_lossy(&question[..length]);
                let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                heard.lock().unwrap().push(path.trim_start_matches("/api/v1/").to_owned());
                match answers[answers.len().min(number + 1) - 1] {
                    SILENCE => {
                        expire(LONG).await;
                        drop(stream);
                        continue;
                    }
                    ENDLESS => tokio::spawn(async move {
                        let _ =
                            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
                        while stream.write_all(b"4\r\naaaa\r\n").await.is_ok() {}
                    }),
                    answer => tokio::spawn(async move {
                        let _ = stream.write_all(answer.as_bytes()).await;
                    }),
                };
            }
        });
        case(&Api::new(&socket)).await;
        server.abort();
        std::fs::remove_file(&socket).unwrap();
        asked.lock().unwrap().clone()
    }

    const SILENCE: &str = "silence";
    const ENDLESS: &str = "endless";
    const DONE: &str = "HTTP/1.1 204 \r\n\r\n";
    const NO_ROOM: &str = "HTTP/1.1 500 \r\nContent-Length: 24\r\n\r\n[\"API\",\"no room at all\"]";
    const LATE: &str = "HTTP/1.1 500 \r\nContent-Length: 78\r\n\r\n\
                        [\"Error signalling vCPUs: Timeout when waiting for signal to be acknowledged\"]";
    const RUNNING: &str = "HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n{\"state\":\"Running\"}";

    #[tokio::test]
    async fn a_500_is_a_refusal_in_its_own_words() {
        with_answers(&[NO_ROOM], async |api| {
            for result in [api.pause().await, api.save("x").await, api.restore("x", &[], Vec::new()).await] {
                assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_hypervisor_that_hangs_up_is_no_refusal() {
        with_answers(&[""], async |api| {
            for result in [api.has_machine().await.map(drop), api.restore("x", &[], Vec::new()).await] {
                assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn one_that_never_answers_meets_the_limit() {
        with_answers(&[SILENCE], async |api| {
            for result in [api.has_machine().await.map(drop), api.boot().await, api.resume().await] {
                assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn an_answer_without_end_is_cut_off() {
        with_answers(&[ENDLESS], async |api| {
            for result in [api.has_machine().await.map(drop), api.save("x").await, api.boot().await] {
                assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_pause_that_came_too_late_is_tried_once_more() {
        let asked = with_answers(&[LATE, RUNNING, DONE], async |api| api.pause().await.unwrap()).await;
        assert_eq!(asked, ["vm.pause", "vm.info", "vm.pause"]);
        let asked = with_answers(&[NO_ROOM, RUNNING], async |api| {
            assert!(matches!(api.pause().await, Err(Error::Refused { .. })));
        })
        .await;
        assert_eq!(asked, ["vm.pause", "vm.info"], "a plain refusal is one");
    }

    #[tokio::test]
    async fn a_pause_that_was_never_answered_is_tried_once_more() {
        let asked = with_answers(&[SILENCE, DONE], async |api| api.pause().await.unwrap()).await;
        assert_eq!(asked, ["vm.pause", "vm.pause"]);
    }

    /// Cloud Hypervisor calls a machine running of which some vCPUs already stand still.
    #[tokio::test]
    async fn what_was_paused_by_half_is_paused_before_it_is_resumed() {
        let asked = with_answers(&[LATE, RUNNING, LATE, RUNNING, DONE], async |api| {
            assert!(matches!(api.pause().await, Err(Error::Refused { .. })));
            api.resume().await.unwrap();
            api.resume().await.unwrap();
        })
        .await;
        let paused = ["vm.pause", "vm.info", "vm.pause", "vm.info"];
        assert_eq!(asked, [&paused[..], &["vm.pause", "vm.resume", "vm.resume"]].concat());
    }
}
