//! One login through the gateway to hostd, as a user's would go, with a key that lives only
//! for it.

use crate::api;
use berth_api::{Client, READY_LOGIN};
use getrandom::SysRng;
use russh::{
    ChannelMsg,
    client::{self, AuthResult, Handler},
    keys::{
        Algorithm, PrivateKey, PrivateKeyWithHashAlg, PublicKeyOrCertificate, ssh_key::rand_core::UnwrapErr,
    },
};
use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpStream, time::timeout};

/// A gateway that says nothing for this long is not well.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer than any answer.
const ANSWER: usize = 4096;

/// Why a login does not come through.
#[derive(Debug)]
pub enum Obstacle {
    /// hostd does not answer root.
    Hostd,
    Closed(io::Error),
    NoSsh(russh::Error),
    Silent,
    /// An SSH server, but none of ours or one that lets the host itself not ask.
    Refused,
    /// The gateway has no way to hostd; its own words.
    Told(String),
    /// The gateway of another hostd.
    Another,
}

impl Obstacle {
    /// Does an SSH server answer there that does not lead to hostd? Waiting seldom helps.
    pub const fn is_answer(&self) -> bool {
        matches!(self, Self::Refused | Self::Told(_) | Self::Another)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hostd => f.write_str("hostd does not answer"),
            Self::Closed(error) => write!(f, "no connection ({error})"),
            Self::NoSsh(error) => write!(f, "no SSH server answers ({error})"),
            Self::Silent => write!(f, "no answer within {PATIENCE:?}"),
            Self::Refused => f.write_str("another SSH server answers"),
            Self::Told(words) => write!(f, "the gateway does not reach hostd: {words}"),
            Self::Another => f.write_str("the gateway of another hostd answers"),
        }
    }
}

/// Takes every host key: what the other end is, hostd's word says.
struct AnyKey;

impl Handler for AnyKey {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _key: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        Ok(true)
    }
}

/// `hostd` is asked for its word directly, and by way of the gateway at `address`.
pub async fn log_in(hostd: &Client, address: SocketAddr) -> Result<(), Obstacle> {
    let word = api::ready(hostd).await.ok_or(Obstacle::Hostd)?;
    let (status, out, errors) = timeout(PATIENCE, ask(address)).await.map_err(|_| Obstacle::Silent)??;
    match status {
        Some(0) if out.trim() == word => Ok(()),
        Some(0) => Err(Obstacle::Another),
        _ => Err(Obstacle::Told(words(&errors))),
    }
}

async fn ask(address: SocketAddr) -> Result<(Option<u32>, String, String), Obstacle> {
    let stream = TcpStream::connect(address).await.map_err(Obstacle::Closed)?;
    let config = Arc::new(client::Config { nodelay: true, ..client::Config::default() });
    let mut handle = client::connect_stream(config, stream, AnyKey).await.map_err(Obstacle::NoSsh)?;
    let key = PrivateKey::random(&mut UnwrapErr(SysRng), Algorithm::Ed25519)
        .map_err(|error| Obstacle::NoSsh(error.into()))?;
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), None);
    match handle.authenticate_publickey(READY_LOGIN, key).await {
        Ok(AuthResult::Success) => {}
        Ok(AuthResult::Failure { .. }) => return Err(Obstacle::Refused),
        Err(error) => return Err(Obstacle::NoSsh(error)),
    }
    let channel = handle.channel_open_session().await.map_err(Obstacle::NoSsh)?;
    channel.exec(true, "ready").await.map_err(Obstacle::NoSsh)?;
    Ok(answer(channel).await)
}

async fn answer(mut channel: russh::Channel<client::Msg>) -> (Option<u32>, String, String) {
    let (mut status, mut out, mut errors) = (None, Vec::new(), Vec::new());
    while let Some(message) = channel.wait().await {
        match message {
            ChannelMsg::Data { data } if out.len() < ANSWER => out.extend_from_slice(&data),
            ChannelMsg::ExtendedData { data, .. } if errors.len() < ANSWER => errors.extend_from_slice(&data),
            ChannelMsg::ExitStatus { exit_status } => status = Some(exit_status),
            _ => {}
        }
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status, text(out), text(errors))
}

/// On a line, and only what a terminal may show.
fn words(errors: &str) -> String {
    let line = errors.lines().next().unwrap_or_default();
    berth_types::text::plain(line.strip_prefix("berth: ").unwrap_or(line), 200)
}
