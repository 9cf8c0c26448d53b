//! Who is at the other end of a connection, and what is shared by its channels.

use super::{
    Gateway,
    flow::Flow,
    repeats::Repeats,
    sessions::{Ending, Slot},
};
use crate::target::{Place, place};
use berth_api::{CallError, Caller, KeyNotice, Reply, Request, Resolved, Session};
use berth_types::{Code, MachineName, Refusal, UserId};
use russh::server::Handle;
use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// Longer than any machine's name with a few letters too many.
const LOGIN_MAX: usize = 64;

/// How the connection came to us.
#[derive(Clone, Debug)]
pub enum Origin {
    /// From the network.
    Network,
    /// Through a channel of another connection (`ssh -J`), to one machine of
    /// that connection's user.
    Jump { machine: MachineName, user: UserId },
}

/// Whose key was verified.
#[derive(Clone, Debug)]
pub struct Login {
    pub session: Session,
    /// What stands before the `@`.
    pub name: String,
    /// This login made the user.
    pub registered: bool,
    /// What the user has to be told of their keys.
    pub notices: Vec<KeyNotice>,
}

#[derive(Debug)]
pub struct Peer {
    pub gateway: Arc<Gateway>,
    pub origin: Origin,
    pub remote: SocketAddr,
    pub local: SocketAddr,
    pub flow: Arc<Flow>,
    /// Known as soon as the session runs.
    pub handle: OnceLock<Handle>,
    pub login: OnceLock<Login>,
    /// Why a verified key is nobody, when that is not the key's fault.
    pub refused: OnceLock<Refusal>,
    /// It logged in to ask whether the host is ready, and may do nothing else.
    pub asks_ready: AtomicBool,
    /// Its key was taken, but its user has as many connections as one may have.
    pub is_one_too_many: AtomicBool,
    /// The fingerprint of the last key that was offered.
    offered: Mutex<Option<String>>,
    /// hostd has refused the login itself, and noted that.
    pub noted: AtomicBool,
    /// Set when hostd takes the access away.
    pub ending: Ending,
    /// Held while it is logged in.
    pub slot: Mutex<Option<Slot>>,
    /// Channels and listeners that the limits did not allow.
    not_admitted: Mutex<Repeats>,
    greeted: AtomicBool,
    warned: AtomicBool,
}

impl Peer {
    pub fn new(gateway: Arc<Gateway>, origin: Origin, remote: SocketAddr, local: SocketAddr) -> Self {
        let budget = Arc::clone(&gateway.budget);
        Self {
            gateway,
            origin,
            remote,
            local,
            flow: Arc::new(Flow::new(budget)),
            handle: OnceLock::new(),
            login: OnceLock::new(),
            refused: OnceLock::new(),
            asks_ready: AtomicBool::new(false),
            is_one_too_many: AtomicBool::new(false),
            offered: Mutex::default(),
            noted: AtomicBool::new(false),
            ending: Arc::new(watch::channel(None).0),
            slot: Mutex::default(),
            not_admitted: Mutex::default(),
            greeted: AtomicBool::new(false),
            warned: AtomicBool::new(false),
        }
    }

    /// Notes that a key was offered, whatever comes of it.
    pub fn tries(&self, fingerprint: String) {
        *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = Some(fingerprint);
    }

    pub fn offered(&self) -> Option<String> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns when hostd has taken the access away, with its reason.
    pub async fn ended(&self) -> Refusal {
        let mut ending = self.ending.subscribe();
        match ending.wait_for(Option::is_some).await.map(|refusal| refusal.clone()) {
            Ok(Some(refusal)) => refusal,
            // The sender is in here, and lives as long.
            _ => std::future::pending().await,
        }
    }

    /// The user's id, for the log.
    pub fn user(&self) -> Option<&str> {
        self.login.get().map(|login| login.session.user.as_str())
    }

    /// The place among its user's connections is another's from now on.
    pub fn leave(&self) {
        let left = self.not_admitted.lock().unwrap_or_else(PoisonError::into_inner).take(Duration::ZERO);
        if let Some(channels) = left {
            tracing::info!(user = self.user(), channels, "more channels were refused");
        }
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Asks hostd on the user's behalf; nobody may ask for anything.
    pub async fn call(
        &self,
        request: Request,
        progress: impl FnMut(String),
    ) -> Result<(Reply, Option<OwnedFd>), Refusal> {
        let Some(login) = self.login.get() else { return Err(self.refusal()) };
        let caller = Caller::User(login.session.clone());
        self.gateway.api.call_with(caller, request, progress).await.map_err(told)
    }

    /// Asks hostd as the gateway itself, about keys.
    pub async fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        self.gateway.ask(request).await
    }

    fn refusal(&self) -> Refusal {
        let nobody = || Refusal::new(Code::NotAllowed, "nobody is logged in", "connect again");
        self.refused.get().cloned().unwrap_or_else(nobody)
    }

    /// What this connection's login name means now: machines come and go while
    /// a connection lasts, so every channel asks anew.
    pub async fn resolve(&self) -> Result<Resolved, Refusal> {
        if let Origin::Jump { machine, .. } = &self.origin {
            return Ok(Resolved::Machine(machine.clone()));
        }
        let name = self.login.get().map(|login| login.name.clone()).unwrap_or_default();
        self.resolve_name(name).await
    }

    pub async fn resolve_name(&self, login: String) -> Result<Resolved, Refusal> {
        // Not even mistyped: nobody has to be asked.
        if login.len() > LOGIN_MAX {
            return Ok(Resolved::Lobby { similar: None });
        }
        match self.call(Request::Resolve { login }, |_| {}).await? {
            (Reply::Resolved(resolved), _) => Ok(resolved),
            _ => Err(crate::command::unexpected()),
        }
    }

    /// Tells hostd who has logged in, so that a machine at rest is on its way
    /// when the first channel asks for it: a round trip or two of the client's.
    pub async fn announce(&self) {
        let login = match (&self.origin, self.login.get()) {
            (Origin::Jump { machine, .. }, _) => machine.to_string(),
            (Origin::Network, Some(login)) if login.name.len() <= LOGIN_MAX => login.name.clone(),
            _ => return,
        };
        // Whatever is wrong is told to the channel.
        let _ = self.call(Request::Expect { login }, |_| {}).await;
    }

    /// Where forwards go.
    pub async fn place(&self) -> Result<Place, Refusal> {
        self.resolve().await.map(place)
    }

    /// What the user has to be told of their keys; once.
    pub fn notices(&self) -> &[KeyNotice] {
        match self.login.get() {
            Some(login) if !login.notices.is_empty() && !self.warned.swap(true, Ordering::Relaxed) => {
                &login.notices
            }
            _ => &[],
        }
    }

    /// True once, for whoever may tell a new user that they are registered.
    pub fn greets(&self) -> bool {
        let new = self.login.get().is_some_and(|login| login.registered);
        new && !self.greeted.swap(true, Ordering::Relaxed)
    }

    /// A place for one more channel or listener, if the limits allow it. Refusals are logged.
    pub fn admit(self: &Arc<Self>) -> Result<Admission, Refusal> {
        self.place_for_channel().inspect_err(|refusal| {
            let counted = self.not_admitted.lock().unwrap_or_else(PoisonError::into_inner).add();
            if let Some(channels) = counted {
                let (user, remote) = (self.user(), self.remote);
                tracing::info!(user, %remote, channels, %refusal, "channels were refused");
            }
        })
    }

    fn place_for_channel(self: &Arc<Self>) -> Result<Admission, Refusal> {
        let settings = &self.gateway.settings;
        if !self.flow.open_channel(settings.channels_max) {
            let message = "too many channels on one connection";
            return Err(Refusal::new(Code::Limit, message, "open another connection"));
        }
        // From here on it gives the first count back when it is dropped.
        let mut admission = Admission { peer: Arc::clone(self), of_user: false };
        if let Some(user) = self.flow.user() {
            if !user.open_channel(settings.channels_per_user) {
                let message = "you have too many channels open";
                return Err(Refusal::new(Code::Limit, message, "close a session or a forward"));
            }
            admission.of_user = true;
        }
        Ok(admission)
    }

    /// The environment that sshd gives to commands.
    pub fn environment(&self) -> Vec<(String, String)> {
        let shown = |address: SocketAddr| format!("{} {}", address.ip().to_canonical(), address.port());
        let client = format!("{} {}", shown(self.remote), self.local.port());
        let connection = format!("{} {}", shown(self.remote), shown(self.local));
        vec![("SSH_CLIENT".into(), client), ("SSH_CONNECTION".into(), connection)]
    }
}

/// What a person is told; what went wrong is for the log.
pub fn told(error: CallError) -> Refusal {
    if let CallError::Unavailable { source, .. } = &error {
        tracing::warn!(%error, %source, "hostd is away");
    }
    error.refusal()
}

/// Counts one channel for as long as it is held.
#[derive(Debug)]
pub struct Admission {
    peer: Arc<Peer>,
    of_user: bool,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.peer.flow.close_channel();
        if let Some(user) = self.peer.flow.user().filter(|_| self.of_user) {
            user.close_channel();
        }
    }
}
