//! The client: a few kept connections, one call on each at a time.

use crate::{
    codec::{Connection, ConnectionError},
    message::{Call, Caller, Message, Reply, Request},
};
use berth_types::{Code, Refusal};
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::net::UnixStream;

/// How many idle connections are worth keeping.
const KEPT: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{0}")]
    Refused(Refusal),
    #[error("hostd does not answer on {}", path.display())]
    Unavailable {
        path: PathBuf,
        #[source]
        source: ConnectionError,
    },
}

impl CallError {
    /// What a person is told.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal.clone(),
            Self::Unavailable { .. } => {
                Refusal::new(Code::Unavailable, "the host is unavailable", "try again in a moment")
            }
        }
    }
}

/// Cheap to clone; all clones share the kept connections.
#[derive(Clone, Debug)]
pub struct Client {
    path: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Client {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: Arc::new(path.into()), idle: Arc::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a call whose progress nobody watches.
    pub async fn call(
        &self,
        caller: Caller,
        request: Request,
    ) -> Result<(Reply, Option<OwnedFd>), CallError> {
        self.call_with(caller, request, |_| {}).await
    }

    pub async fn call_with(
        &self,
        caller: Caller,
        request: Request,
        mut progress: impl FnMut(String),
    ) -> Result<(Reply, Option<OwnedFd>), CallError> {
        let unavailable = |source| CallError::Unavailable { path: self.path.to_path_buf(), source };
        let mut connection = self.connection().await.map_err(unavailable)?;
        let call = Call::new(caller, request);
        connection.send(&call, None).await.map_err(unavailable)?;
        // The kernel may hand over the reply's descriptor with progress that was sent
        // just before it.
        let mut early = None;
        loop {
            match connection.receive::<Message>().await.map_err(unavailable)? {
                (Message::Progress(text), descriptor) => {
                    early = descriptor.or(early);
                    progress(text);
                }
                (Message::Done(result), descriptor) => {
                    self.keep(connection);
                    let descriptor = descriptor.or(early);
                    return result.map(|reply| (reply, descriptor)).map_err(CallError::Refused);
                }
            }
        }
    }

    async fn connection(&self) -> Result<Connection, ConnectionError> {
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match kept {
                // hostd may have gone and come back meanwhile.
                Some(connection) if connection.is_idle() => return Ok(connection),
                Some(_) => {}
                None => return Ok(Connection::new(UnixStream::connect(&*self.path).await?)),
            }
        }
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(connection);
        }
    }
}
