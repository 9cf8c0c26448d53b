//! russh's callbacks. They run inside the connection's loop, so they answer at
//! once and leave the work to a task per channel; only logins and requests for
//! listeners, whose answer is the result, wait for hostd.

use super::{
    auth, channel,
    limits::Permit,
    peer::{Login, Origin, Peer},
    ready, session,
};
use crate::attach::{
    forward::{self, Asked},
    jump,
    listen::{self, Announce, Listening},
};
use berth_api::{Reply, Request, Resolved, Session as UserSession};
use berth_config::Registration;
use berth_guest_protocol::{Listen, Target};
use berth_types::{Code, Refusal};
use russh::{
    Channel, ChannelId, ChannelOpenFailure, Error, Pty,
    server::{Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey},
};
use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

/// A listener's machine may have to start first.
const LISTEN_PATIENCE: Duration = Duration::from_secs(60);
const SSH_PORT: u32 = 22;

/// One connection's callbacks.
#[derive(Debug)]
pub struct Connection {
    peer: Arc<Peer>,
    /// Given back when somebody has logged in.
    permit: Option<Permit>,
    listeners: HashMap<Listener, Listening>,
}

/// Why a verified key does not log in.
enum Refused {
    /// It is as good as unknown, unless the refusal is about the moment.
    Plain(Refusal),
    /// It is known, and its holder has to be told.
    Told(Refusal),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        if refusal.code == Code::NotAllowed { Self::Plain(refusal) } else { Self::Told(refusal) }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Listener {
    Tcp(String, u32),
    Unix(String),
}

impl Connection {
    pub fn new(peer: Arc<Peer>, permit: Option<Permit>) -> Self {
        Self { peer, permit, listeners: HashMap::new() }
    }

    async fn log_in(&self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Login, Refused> {
        let key = auth::record(key.public_key)?;
        let (fingerprint, address) = (key.fingerprint.clone(), self.peer.remote.ip().to_canonical());
        let round = self.peer.gateway.sessions.round();
        let answer = self.peer.ask(Request::Login { key, address }).await;
        let (user_id, registered, notices) = match answer {
            Ok(Reply::LoggedIn { user, registered, notices }) => (user, registered, notices),
            Ok(Reply::Barred(refusal)) => return Err(Refused::Told(refusal)),
            Ok(_) => return Err(crate::command::unexpected().into()),
            Err(refusal) => {
                let is_hostds = refusal.code != Code::Unavailable;
                self.peer.noted.store(is_hostds, Ordering::Relaxed);
                return Err(refusal.into());
            }
        };
        if let Origin::Jump { user: owner, .. } = &self.peer.origin
            && *owner != user_id
        {
            let message = "this key is not of the user who made the jump";
            return Err(Refusal::new(Code::NotAllowed, message, "use the same key for both").into());
        }
        let session = UserSession { user: user_id, key: fingerprint, address };
        let slot =
            match self.peer.gateway.sessions.enter(session.clone(), Arc::clone(&self.peer.ending), round) {
                Ok(slot) => slot,
                Err(refusal) => {
                    self.peer.is_one_too_many.store(true, Ordering::Relaxed);
                    let (fingerprint, reason) = (Some(session.key), refusal.message.clone());
                    let _ = self.peer.ask(Request::LoginFailed { address, fingerprint, reason }).await;
                    return Err(Refused::Told(refusal));
                }
            };
        self.peer.flow.belongs_to(Arc::clone(&slot.budget));
        *self.peer.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(slot);
        Ok(Login { session, name: user.to_owned(), registered, notices })
    }

    fn asked(&self, channel: Channel<Msg>) -> Result<Asked, Refusal> {
        self.peer.admit().map(|admission| Asked { channel, admission })
    }

    async fn listen(
        &mut self,
        listen: Listen,
        announce: impl FnOnce(u16) -> Announce,
    ) -> Option<(u16, Listening)> {
        let peer = Arc::clone(&self.peer);
        let listener = format!("{listen:?}");
        let binding = async {
            let admission = peer.admit()?;
            let place = peer.place().await?;
            let bound = listen::bind(&peer, &place, listen).await?;
            Ok::<_, Refusal>((place, bound, admission))
        };
        match tokio::time::timeout(LISTEN_PATIENCE, binding).await {
            Ok(Ok((place, bound, admission))) => {
                let port = bound.port;
                Some((port, listen::serve(Arc::clone(&peer), place, bound, announce(port), admission)))
            }
            Ok(Err(refusal)) => {
                tracing::info!(%listener, user = self.peer.user(), %refusal, "a remote forward was refused");
                None
            }
            Err(_) => {
                tracing::info!(%listener, user = self.peer.user(), "a remote forward was not made in time");
                None
            }
        }
    }
}

fn shortage(refusal: &Refusal) -> ChannelOpenFailure {
    let code = ChannelOpenFailure::ResourceShortage.code();
    ChannelOpenFailure::Other { code, reason: format!("berth: {refusal}") }
}

impl Handler for Connection {
    type Error = Error;

    async fn auth_publickey_offered(&mut self, user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, Error> {
        self.peer.tries(auth::fingerprint(offer.public_key));
        if !auth::acceptable(offer.public_key, offer.algorithm) {
            return Ok(Auth::reject());
        }
        let open = self.peer.gateway.settings.registration == Registration::Open;
        if open || ready::asks(&self.peer, user) {
            return Ok(Auth::Accept);
        }
        let fingerprint = auth::fingerprint(offer.public_key);
        match self.peer.ask(Request::Knows { fingerprint }).await {
            Ok(Reply::Knows(false)) => Ok(Auth::reject()),
            // Also when hostd is away: the login itself then tells why.
            _ => Ok(Auth::Accept),
        }
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Error> {
        if ready::asks(&self.peer, user) {
            self.peer.asks_ready.store(true, Ordering::Relaxed);
            return Ok(Auth::Accept);
        }
        match self.log_in(user, key).await {
            Ok(login) => {
                tracing::info!(user = %login.session.user, remote = %self.peer.remote, "logged in");
                let _ = self.peer.login.set(login);
                Ok(Auth::Accept)
            }
            Err(Refused::Plain(refusal)) => {
                tracing::info!(remote = %self.peer.remote, %refusal, "a login was refused");
                Ok(Auth::reject())
            }
            Err(Refused::Told(refusal)) => {
                tracing::info!(remote = %self.peer.remote, %refusal, "a login was refused with its reason");
                // SSH has no words for "not now", so the key's holder comes in
                // without a user and every channel gives the reason.
                let _ = self.peer.refused.set(refusal);
                Ok(Auth::Accept)
            }
        }
    }

    async fn auth_succeeded(&mut self, session: &mut Session) -> Result<(), Error> {
        let _ = self.peer.handle.set(session.handle());
        if self.peer.login.get().is_some() {
            self.permit = None;
            let peer = Arc::clone(&self.peer);
            tokio::spawn(async move { peer.announce().await });
        }
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), Error> {
        let admission = match self.peer.admit() {
            Ok(admission) => admission,
            Err(refusal) => {
                reply.reject(shortage(&refusal)).await;
                return Ok(());
            }
        };
        reply.accept().await;
        let peer = Arc::clone(&self.peer);
        let (inbox, outlet) = channel::split(channel, session.handle(), Arc::clone(&peer.flow));
        tokio::spawn(async move {
            session::serve(peer, inbox, outlet).await;
            drop(admission);
        });
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        let asked = match self.asked(channel) {
            Ok(asked) => asked,
            Err(refusal) => {
                reply.reject(shortage(&refusal)).await;
                return Ok(());
            }
        };
        let Ok(port16) = u16::try_from(port) else {
            reply.reject(ChannelOpenFailure::ConnectFailed).await;
            return Ok(());
        };
        let (peer, host) = (Arc::clone(&self.peer), host.to_owned());
        tokio::spawn(async move {
            if port == SSH_PORT
                && let Some(origin) = jump_target(&peer, &host).await
            {
                return jump::serve(peer, asked, reply, origin).await;
            }
            forward::dial(peer, asked, reply, Target::Tcp { host, port: port16 }).await;
        });
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        match self.asked(channel) {
            Ok(asked) => {
                let target = Target::Unix { path: path.to_owned() };
                tokio::spawn(forward::dial(Arc::clone(&self.peer), asked, reply, target));
            }
            Err(refusal) => reply.reject(shortage(&refusal)).await,
        }
        Ok(())
    }

    fn adjust_window(&mut self, _channel: ChannelId, _current: u32) -> u32 {
        self.peer.flow.window()
    }

    async fn data(&mut self, _channel: ChannelId, data: &[u8], _session: &mut Session) -> Result<(), Error> {
        self.peer.flow.slow_down(data.len()).await;
        Ok(())
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        _term: &str,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Error> {
        session.channel_success(channel)
    }

    async fn x11_request(
        &mut self,
        channel: ChannelId,
        _single: bool,
        _protocol: &str,
        _cookie: &str,
        _screen: u32,
        session: &mut Session,
    ) -> Result<(), Error> {
        session.channel_failure(channel)
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), Error> {
        if session::accepts_variable(name, value) {
            session.channel_success(channel)
        } else {
            session.channel_failure(channel)
        }
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), Error> {
        session.channel_success(channel)
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        _line: &[u8],
        session: &mut Session,
    ) -> Result<(), Error> {
        session.channel_success(channel)
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Result<(), Error> {
        if name == "sftp" { session.channel_success(channel) } else { session.channel_failure(channel) }
    }

    async fn window_change_request(
        &mut self,
        channel: ChannelId,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        session: &mut Session,
    ) -> Result<(), Error> {
        session.channel_success(channel)
    }

    async fn agent_request(&mut self, _channel: ChannelId, _session: &mut Session) -> Result<bool, Error> {
        Ok(true)
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        _session: &mut Session,
    ) -> Result<bool, Error> {
        let Ok(wanted) = u16::try_from(*port) else { return Ok(false) };
        let listen = Listen::Tcp { host: address.to_owned(), port: wanted };
        let announce = |port| Announce::Tcp { address: address.to_owned(), port };
        let Some((bound, listening)) = self.listen(listen, announce).await else { return Ok(false) };
        *port = u32::from(bound);
        self.listeners.insert(Listener::Tcp(address.to_owned(), *port), listening);
        Ok(true)
    }

    async fn cancel_tcpip_forward(
        &mut self,
        address: &str,
        port: u32,
        _session: &mut Session,
    ) -> Result<bool, Error> {
        Ok(self.listeners.remove(&Listener::Tcp(address.to_owned(), port)).is_some())
    }

    async fn streamlocal_forward(&mut self, path: &str, _session: &mut Session) -> Result<bool, Error> {
        let listen = Listen::Unix { path: path.to_owned() };
        let announce = |_| Announce::Unix { path: path.to_owned() };
        let Some((_, listening)) = self.listen(listen, announce).await else { return Ok(false) };
        self.listeners.insert(Listener::Unix(path.to_owned()), listening);
        Ok(true)
    }

    async fn cancel_streamlocal_forward(
        &mut self,
        path: &str,
        _session: &mut Session,
    ) -> Result<bool, Error> {
        Ok(self.listeners.remove(&Listener::Unix(path.to_owned())).is_some())
    }
}

/// `ssh -J HOST NAME`: from the lobby, port 22 of a machine's name is that
/// machine. At a machine's own login it is whatever the machine finds there.
async fn jump_target(peer: &Peer, host: &str) -> Option<Origin> {
    let login = peer.login.get()?;
    if !matches!(peer.resolve().await, Ok(Resolved::Lobby { .. })) {
        return None;
    }
    match peer.resolve_name(host.to_owned()).await {
        Ok(Resolved::Machine(machine)) => Some(Origin::Jump { machine, user: login.session.user.clone() }),
        _ => None,
    }
}
