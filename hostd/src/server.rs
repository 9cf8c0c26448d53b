//! The API's socket: who calls, and for whom.

use crate::{
    error::{FileContext, IoContext, Result},
    host::Host,
    verb::{self, Outcome, Progress},
};
use berth_api::{Call, Caller, Connection, ConnectionError, FORMAT_VERSION, Message, OtherVersion, Request};
use berth_types::{Code, Refusal};
use nix::unistd::{User, chown};
use std::{
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::Path,
    sync::Arc,
};
use tokio::{net::UnixListener, sync::mpsc};

pub struct Server {
    listener: UnixListener,
    gateway_uid: Option<u32>,
}

impl Server {
    /// The socket belongs to the gateway's user: root and it may connect.
    pub fn bind(path: &Path, gateway_user: &str) -> Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).file("remove", path);
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).file("listen on", path)?;
        let user = User::from_name(gateway_user).during("look up the gateway's user")?;
        if user.is_none() {
            tracing::warn!(gateway_user, "the gateway's user does not exist: only root may connect");
        }
        if let Some(user) = &user {
            chown(path, Some(user.uid), Some(user.gid)).file("give away", path)?;
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).file("protect", path)?;
        Ok(Self { listener, gateway_uid: user.map(|user| user.uid.as_raw()) })
    }

    pub async fn serve(self, host: Arc<Host>) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (host, gateway) = (host.clone(), self.gateway_uid);
                    tokio::spawn(async move {
                        let connection = Connection::new(stream);
                        if let Err(error) = converse(host, connection, gateway).await {
                            tracing::debug!(%error, "a caller's connection ended");
                        }
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely: others may free some.
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// hostd ends once a shutdown is answered, or its caller is gone.
struct EndAfter(Arc<Host>);

impl Drop for EndAfter {
    fn drop(&mut self) {
        self.0.end.send_replace(true);
    }
}

async fn converse(
    host: Arc<Host>,
    mut connection: Connection,
    gateway_uid: Option<u32>,
) -> Result<(), ConnectionError> {
    let uid = connection.peer_uid()?;
    loop {
        let call = match connection.receive_call().await {
            Ok(Ok(call)) => call,
            Ok(Err(other)) => {
                connection.send(&Message::Done(Err(refuse(other))), None).await?;
                continue;
            }
            Err(ConnectionError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        };
        let _end = matches!((&call.caller, &call.request), (Caller::Operator, Request::Shutdown) if uid == 0)
            .then(|| EndAfter(host.clone()));
        let (sender, mut progress) = mpsc::unbounded_channel();
        // A task of its own: a caller that hangs up does not stop half-way what it began.
        let mut working = tokio::spawn(answer(host.clone(), call, uid, gateway_uid, Progress::new(sender)));
        let outcome = loop {
            tokio::select! {
                Some(text) = progress.recv() => connection.send(&Message::Progress(text), None).await?,
                outcome = &mut working => break outcome,
            }
        };
        while let Ok(text) = progress.try_recv() {
            connection.send(&Message::Progress(text), None).await?;
        }
        let outcome: Outcome = outcome.unwrap_or_else(|error| {
            tracing::error!(%error, "a request's task died");
            Err(Refusal::new(
                Code::Failed,
                "the host could not do that",
                "its operator finds the reason in the log",
            ))
        });
        match outcome {
            Ok((reply, descriptor)) => {
                let descriptor = descriptor.as_ref().map(AsFd::as_fd);
                connection.send(&Message::Done(Ok(reply)), descriptor).await?;
            }
            Err(refusal) => connection.send(&Message::Done(Err(refusal)), None).await?,
        }
    }
}

fn refuse(OtherVersion(version): OtherVersion) -> Refusal {
    let message =
        format!("the caller's requests have format version {version}, hostd reads {FORMAT_VERSION}");
    Refusal::new(Code::Unavailable, message, "restart both daemons with one version")
}

async fn answer(host: Arc<Host>, call: Call, uid: u32, gateway: Option<u32>, progress: Progress) -> Outcome {
    let trusted = uid == 0 || Some(uid) == gateway;
    match call.caller {
        Caller::Gateway if trusted => verb::for_gateway(&host, call.request).await,
        Caller::User(session) if trusted => verb::for_user(&host, &session, call.request, &progress).await,
        Caller::Operator if uid == 0 => verb::for_operator(&host, call.request, &progress).await,
        _ => Err(Refusal::new(Code::NotAllowed, "you may not ask that", "run it as root")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Scratch, World};
    use tokio::net::UnixStream;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_caller_of_another_version_is_told_which_is_read() {
        berth_sys::needs_root!();
        let scratch = Scratch::new();
        let world = World::open(&scratch).await;
        let (near, far) = UnixStream::pair().unwrap();
        tokio::spawn(converse(world.host.clone(), Connection::new(far), None));
        let mut near = Connection::new(near);
        let newer = serde_json::json!({"format_version": 99, "caller": "robot", "request": {"do": "fly"}});
        near.send(&newer, None).await.unwrap();
        let (Message::Done(Err(refusal)), _) = near.receive().await.unwrap() else { panic!("not refused") };
        assert_eq!(refusal.code, Code::Unavailable);
        assert_eq!(refusal.message, "the caller's requests have format version 99, hostd reads 2");
        // The connection is still one.
        near.send(&Call::new(Caller::Gateway, Request::Ready), None).await.unwrap();
        assert!(matches!(near.receive().await.unwrap(), (Message::Done(_), None)));
    }
}
