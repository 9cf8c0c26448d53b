//! What all machines share: settings, trust, the authority, the way to hostd.

use crate::{
    bridge::{authority::Authority, inject::Budget, report::Reporter, ssh, upstream::Trust},
    control::{Limits, Settings},
};
use berth_types::egress::{Ground, HostName};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

#[derive(Debug)]
pub struct Host {
    shared: RwLock<Arc<Shared>>,
    pub reporter: Reporter,
    /// Connections of all machines.
    pub connections: Arc<AtomicUsize>,
    /// Memory for bodies of all machines.
    pub bodies: Arc<Budget>,
    machines: AtomicUsize,
    descriptors: usize,
}

/// One set of settings, made ready for use.
#[derive(Debug)]
pub struct Shared {
    pub authority: Authority,
    pub trust: Trust,
    /// How the bridge is an SSH server.
    pub ssh: Arc<russh::server::Config>,
    pub hosts: BTreeMap<HostName, Vec<Ipv4Addr>>,
    pub ground: Ground,
    pub resolvers: Vec<SocketAddr>,
    pub limits: Limits,
}

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("the authority cannot be used: {0}")]
    Authority(#[from] rcgen::Error),
    #[error("the private roots cannot be read")]
    Roots,
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

impl Shared {
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        Ok(Self {
            authority: Authority::new(&settings.authority_certificate, &settings.authority_key)?,
            trust: Trust::new(&settings.extra_roots)?,
            ssh: Arc::new(russh::server::Config {
                keys: vec![ssh::host_key(&settings.authority_key)],
                inactivity_timeout: None,
                nodelay: true,
                window_size: ssh::WINDOW,
                ..russh::server::Config::default()
            }),
            hosts: settings.hosts,
            ground: settings.ground,
            resolvers: settings.resolvers,
            limits: settings.limits,
        })
    }
}

impl Host {
    pub fn new(shared: Shared, reporter: Reporter) -> Self {
        let descriptors = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
            .map_or(1024, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX));
        Self {
            bodies: Budget::new(shared.limits.bodies_bytes.into()),
            shared: RwLock::new(Arc::new(shared)),
            reporter,
            connections: Arc::default(),
            machines: AtomicUsize::new(0),
            descriptors,
        }
    }

    pub fn shared(&self) -> Arc<Shared> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn configure(&self, shared: Shared) {
        *self.shared.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(shared);
    }

    pub fn count_machines(&self, count: usize) {
        self.machines.store(count, Ordering::Relaxed);
    }

    /// How many connections one machine may have now: as many as its limit
    /// says while there is room, its part of what there is when it gets tight.
    pub fn room(&self) -> usize {
        let limit = self.shared().limits.connections as usize;
        // Two sockets and, while bytes move both ways, two pipes.
        let capacity = self.descriptors.saturating_sub(256) / 6;
        if self.connections.load(Ordering::Relaxed) < capacity / 4 * 3 {
            return limit;
        }
        let machines = self.machines.load(Ordering::Relaxed).max(1);
        limit.min((capacity / machines).max(16))
    }
}
