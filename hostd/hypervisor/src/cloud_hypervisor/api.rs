//! The REST socket, with a limit on every question.
//!
//! The client has no time-outs of its own, and its errors are for programmers.

use super::request;
use crate::{Error, supervise::one_line};
use cloud_hypervisor_client::{
    SocketBasedApiClient,
    apis::{self, DefaultApi},
    models::{VmConfig, VmResizeDisk, VmSnapshotConfig, VmState},
    socket_based_api_client,
};
use serde_json::{Value, json};
use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::timeout;

/// For one question. A pause first waits for the guest's disk writes.
const LIMIT: Duration = Duration::from_secs(20);
/// For a start, a save or a restore: small, but the disk below may be busy.
const LONG: Duration = Duration::from_secs(60);

pub(super) struct Api {
    socket: PathBuf,
    client: SocketBasedApiClient,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Api {
    /// Connects with the first question.
    pub(super) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), client: socket_based_api_client(socket) }
    }

    /// Whether there is a machine that could go on: one that was described and
    /// not started, or was to be restored, is none.
    pub(super) async fn has_machine(&self) -> Result<bool, Error> {
        match ask("connecting to the hypervisor", LIMIT, self.client.vm_info_get()).await {
            Ok(info) => Ok(matches!(info.state, VmState::Running | VmState::Paused)),
            Err(Error::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn create(&self, config: VmConfig) -> Result<(), Error> {
        ask("describing the machine", LONG, self.client.create_vm(config)).await
    }

    pub(super) async fn add_link(&self, link: &Value, tap: OwnedFd) -> Result<(), Error> {
        self.hand("adding a link", "vm.add-net", link, vec![tap]).await
    }

    pub(super) async fn boot(&self) -> Result<(), Error> {
        ask("starting the machine", LONG, self.client.boot_vm()).await
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
        ask("saving device state", LONG, self.client.vm_snapshot_put(destination)).await
    }

    /// Paused already is as good: it answers that with a refusal.
    pub(super) async fn pause(&self) -> Result<(), Error> {
        let paused = ask("pausing", LIMIT, self.client.pause_vm()).await;
        self.unless(VmState::Paused, paused).await
    }

    pub(super) async fn resume(&self) -> Result<(), Error> {
        let resumed = ask("resuming", LIMIT, self.client.resume_vm()).await;
        self.unless(VmState::Running, resumed).await
    }

    pub(super) async fn resize_disk(&self, id: &str, size: u64) -> Result<(), Error> {
        let desired_size = i64::try_from(size).ok();
        let resize = VmResizeDisk { id: Some(id.to_owned()), desired_size };
        ask("resizing the disk", LIMIT, self.client.vm_resize_disk_put(resize)).await
    }

    /// A refusal is none when the machine is in that state already.
    async fn unless(&self, state: VmState, result: Result<(), Error>) -> Result<(), Error> {
        let Err(error @ Error::Refused { .. }) = result else { return result };
        match ask("asking for the machine's state", LIMIT, self.client.vm_info_get()).await {
            Ok(info) if info.state == state => Ok(()),
            _ => Err(error),
        }
    }

    /// Asks with descriptors beside the question.
    async fn hand(
        &self,
        operation: &'static str,
        path: &str,
        body: &Value,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Error> {
        let put = request::put(&self.socket, path, body.to_string(), descriptors);
        match timeout(LONG, put).await {
            Ok(Ok((status, _))) if status.is_success() => Ok(()),
            Ok(Ok((_, body))) => Err(Error::Refused { operation, message: words(&body) }),
            Ok(Err(source)) => Err(Error::Io { operation, source }),
            Err(_) => Err(Error::Timeout { operation, limit: LONG }),
        }
    }
}

async fn ask<T>(
    operation: &'static str,
    limit: Duration,
    question: impl Future<Output = Result<T, apis::Error>>,
) -> Result<T, Error> {
    match timeout(limit, question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(apis::Error::Api(error))) => Err(Error::Refused { operation, message: words(&error.body) }),
        Ok(Err(error)) => Err(Error::Io { operation, source: io::Error::other(error) }),
        Err(_) => Err(Error::Timeout { operation, limit }),
    }
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

    /// A hypervisor that answers every question with the same bytes, or hangs up.
    async fn with_answer(answer: &'static str, case: impl AsyncFnOnce(Api)) {
        let socket = std::env::temp_dir().join(format!("berth-api-{}", berth_types::MachineId::random()));
        let listener = UnixListener::bind(&socket).unwrap();
        let server = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut question = [0; 4096];
                let _ = stream.read(&mut question).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        case(Api::new(&socket)).await;
        server.abort();
        std::fs::remove_file(&socket).unwrap();
    }

    #[tokio::test]
    async fn a_500_is_a_refusal_in_its_own_words() {
        let answer =
            "HTTP/1.1 500 \r\nConnection: close\r\nContent-Length: 24\r\n\r\n[\"API\",\"no room at all\"]";
        with_answer(answer, async |api| {
            for result in [api.pause().await, api.save("x").await, api.restore("x", &[], Vec::new()).await] {
                assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_hypervisor_that_hangs_up_is_no_refusal() {
        with_answer("", async |api| {
            for result in [api.has_machine().await.map(drop), api.restore("x", &[], Vec::new()).await] {
                assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn one_that_never_answers_meets_the_limit() {
        let silent =
            ask("waiting", Duration::from_millis(10), std::future::pending::<Result<(), apis::Error>>());
        assert!(matches!(silent.await, Err(Error::Timeout { .. })));
    }
}
