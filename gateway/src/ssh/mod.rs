//! SSH: connections in, limits on them, their channels.

pub mod auth;
pub mod channel;
mod handler;
pub mod hostkey;
pub mod limits;
pub mod peer;
mod prompt;
pub mod server;
pub mod session;

use crate::ui::Address;
use berth_api::Client;
use limits::Limits;
use russh::{MethodKind, MethodSet, Preferred, SshId, keys::PrivateKey, server::Config};
use std::{borrow::Cow, sync::Arc, time::Duration};

/// Clients read more into it than they should: asyncssh sends the arguments of
/// a symlink in OpenSSH's order only to a server that names it.
const SERVER_ID: &str = concat!("SSH-2.0-berth_", env!("CARGO_PKG_VERSION"), " as OpenSSH");

/// More than anyone's agent holds; each costs one question to hostd.
const ATTEMPTS_MAX: usize = 30;
const KEEPALIVES_UNANSWERED: usize = 3;

/// What every connection shares.
#[derive(Debug)]
pub struct Gateway {
    pub api: Client,
    pub settings: berth_config::Gateway,
    pub address: Address,
    pub ssh: Arc<Config>,
    pub limits: Limits,
}

impl Gateway {
    pub fn new(config: &berth_config::Config, keys: Vec<PrivateKey>) -> Self {
        let settings = config.gateway.clone();
        Self {
            api: Client::new(config.service.api_socket()),
            address: Address::new(settings.public_host.clone(), settings.shown_port()),
            ssh: Arc::new(ssh_config(&settings, keys)),
            limits: Limits::new(settings.unauthenticated_max, settings.unauthenticated_per_address),
            settings,
        }
    }
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
        window_size: channel::WINDOW,
        maximum_packet_size: 65_535,
        // Messages on their way to a channel's task, which always takes them.
        channel_buffer_size: 32,
        event_buffer_size: 32,
        preferred: Preferred { key: Cow::Borrowed(auth::ALGORITHMS), ..Preferred::DEFAULT },
        max_auth_attempts: ATTEMPTS_MAX,
        // A silent session is a living one; keepalives find the dead.
        inactivity_timeout: None,
        keepalive_interval: Some(settings.keepalive.duration()),
        keepalive_max: KEEPALIVES_UNANSWERED,
        nodelay: true,
        ..Config::default()
    }
}
