//! SSH: connections in, limits on them, their channels.

pub mod auth;
pub mod channel;
pub mod flow;
mod handler;
pub mod hostkey;
pub mod limits;
pub mod peer;
pub mod penalties;
mod prompt;
mod ready;
mod repeats;
pub mod server;
pub mod session;
pub mod sessions;
mod turned_away;

use crate::ui::Address;
use berth_api::{Caller, Client, Reply, Request};
use berth_types::{ByteSize, Refusal};
use flow::Budget;
use limits::Limits;
use penalties::Penalties;
use russh::{
    MethodKind, MethodSet, Preferred, SshId, compression, kex, keys::PrivateKey, mac, server::Config,
};
use sessions::Sessions;
use std::{borrow::Cow, sync::Arc, time::Duration};
use turned_away::TurnedAway;

/// Clients read more into it than they should: asyncssh sends the arguments of
/// a symlink in OpenSSH's order only to a server that names it.
const SERVER_ID: &str = concat!("SSH-2.0-berth_", env!("CARGO_PKG_VERSION"), " as OpenSSH");

/// More than anyone's agent holds; each costs one question to hostd.
const ATTEMPTS_MAX: usize = 30;
/// Above every client's own mark, and below 2^32 packets, which no cipher survives.
const REKEY_BYTES: usize = 96 << 30;
const REKEY_NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const KEEPALIVES_UNANSWERED: usize = 3;

/// Without what russh has for old peers: Diffie-Hellman of 2048 bits and MACs
/// over the plain text. Compression begins after the login, as OpenSSH's: before
/// it a decompressor is only something to attack.
const PREFERRED: Preferred = Preferred {
    kex: Cow::Borrowed(&[
        kex::MLKEM768X25519_SHA256,
        kex::CURVE25519,
        kex::CURVE25519_PRE_RFC_8731,
        kex::DH_G18_SHA512,
        kex::DH_G16_SHA512,
        kex::EXTENSION_SUPPORT_AS_SERVER,
        kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
    ]),
    key: Cow::Borrowed(auth::ALGORITHMS),
    mac: Cow::Borrowed(&[mac::HMAC_SHA512_ETM, mac::HMAC_SHA256_ETM]),
    compression: Cow::Borrowed(&[compression::NONE, compression::ZLIB_LEGACY]),
    ..Preferred::DEFAULT
};

/// What every connection shares.
#[derive(Debug)]
pub struct Gateway {
    pub api: Client,
    pub settings: berth_config::Gateway,
    pub address: Address,
    pub ssh: Arc<Config>,
    pub limits: Limits,
    pub penalties: Penalties,
    pub turned_away: TurnedAway,
    pub sessions: Arc<Sessions>,
    /// Of all connections together.
    pub budget: Arc<Budget>,
}

impl Gateway {
    pub fn new(config: &berth_config::Config, keys: Vec<PrivateKey>) -> Self {
        let settings = config.gateway.clone();
        Self {
            api: Client::new(config.service.api_socket()),
            address: Address::new(settings.public_host.clone(), settings.shown_port()),
            ssh: Arc::new(ssh_config(&settings, keys)),
            limits: Limits::new(settings.unauthenticated_max, settings.unauthenticated_per_address),
            sessions: Arc::new(Sessions::new(settings.connections_per_user, bytes(settings.queue_per_user))),
            budget: Arc::new(Budget::new(bytes(settings.queue_max))),
            penalties: Penalties::new(settings.penalty_max.duration(), settings.trusted_addresses.clone()),
            turned_away: TurnedAway::default(),
            settings,
        }
    }

    /// Asks hostd as the gateway itself.
    async fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        self.api.call(Caller::Gateway, request).await.map(|(reply, _)| reply).map_err(peer::told)
    }
}

fn bytes(size: ByteSize) -> usize {
    usize::try_from(size.bytes()).unwrap_or(usize::MAX)
}

fn ssh_config(settings: &berth_config::Gateway, keys: Vec<PrivateKey>) -> Config {
    Config {
        server_id: SshId::Standard(Cow::Borrowed(SERVER_ID)),
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        // A key that is not known tells nobody anything: no need to make honest
        // clients wait, who offer all they have.
        auth_rejection_time: Duration::ZERO,
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys,
        window_size: flow::FIRST_WINDOW,
        // New keys are for clients to ask for: docs/decisions/0020.
        limits: russh::Limits {
            rekey_write_limit: REKEY_BYTES,
            rekey_read_limit: REKEY_BYTES,
            rekey_time_limit: REKEY_NEVER,
        },
        maximum_packet_size: 65_535,
        // Messages on their way to a channel's task, which always takes them.
        channel_buffer_size: 32,
        event_buffer_size: 32,
        preferred: PREFERRED,
        max_auth_attempts: ATTEMPTS_MAX,
        // A silent session is a living one; keepalives find the dead.
        inactivity_timeout: None,
        keepalive_interval: Some(settings.keepalive.duration()),
        keepalive_max: KEEPALIVES_UNANSWERED,
        nodelay: true,
        ..Config::default()
    }
}
