//! The server's side: who it has to be, and the login with the key.

use super::{PROTOCOL, queued::Queued};
use crate::{
    bridge::{
        dial, flow,
        machine::Machine,
        rules::{Form, Ready, Rules, Ssh},
    },
    control::{Decision, Outcome},
};
use berth_types::egress::HostName;
use russh::{
    Preferred,
    client::{self, AuthResult, Handle},
    keys::PrivateKeyWithHashAlg,
    keys::PublicKeyOrCertificate,
};
use std::{
    borrow::Cow,
    net::SocketAddrV4,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::OnceCell, time::timeout};

const PATIENCE: Duration = Duration::from_secs(20);

/// One guest's connection to one server.
pub struct Route {
    pub machine: Arc<Machine>,
    name: HostName,
    to: SocketAddrV4,
    secret: Arc<Ready>,
    login: OnceCell<Result<Handle<Check>, String>>,
    pub queued: Queued,
}

impl Route {
    pub fn new(machine: Arc<Machine>, name: HostName, to: SocketAddrV4, secret: Arc<Ready>) -> Self {
        Self { machine, name, to, secret, login: OnceCell::new(), queued: Queued::default() }
    }

    pub fn decision(&self, outcome: Outcome) -> Decision {
        let mut decision = flow::decision(&self.machine, PROTOCOL, Some(&self.name), self.to);
        decision.verdict = outcome;
        decision.rule = self.secret.rule();
        decision
    }

    pub fn refuse(&self, reason: &str) {
        let mut decision = self.decision(Outcome::Refused);
        decision.reason = reason.to_owned();
        self.machine.host.reporter.decided(decision);
    }

    pub async fn no_longer_allowed(&self) {
        let rule = |rules: &Rules| {
            // Another key, or none, is another login.
            let same = rules.for_ssh(&self.name, self.to.port()).is_some_and(|now| {
                now.value.expose() == self.secret.value.expose() && now.binding == self.secret.binding
            });
            same && self.machine.decide(rules, Some(&self.name), self.to).allowed
        };
        self.machine.changed_until(rule).await;
    }

    /// The server, logged in to as this user; once for all channels.
    pub async fn login(&self, user: &str) -> Result<&Handle<Check>, String> {
        let login = self.login.get_or_init(|| async {
            match timeout(PATIENCE, self.connect(user)).await {
                Ok(connected) => connected,
                Err(_) => Err(format!("{} does not answer", self.name)),
            }
        });
        let login = login.await;
        if let Err(reason) = login {
            self.refuse(reason);
        }
        login.as_ref().map_err(|reason| format!("refused by {}: {reason}", self.secret.rule()))
    }

    async fn connect(&self, user: &str) -> Result<Handle<Check>, String> {
        let ssh = self.secret.forms.iter().find_map(|form| match form {
            Form::Ssh(ssh) => Some(ssh),
            _ => None,
        });
        let Some(Ssh { key, user: fixed, known_hosts }) = ssh else {
            return Err(self.secret.broken.clone().unwrap_or_default());
        };
        let algorithms = known_hosts.algorithms(&self.name, self.to.port());
        if algorithms.is_empty() {
            return Err(format!("known_hosts has no key for {} port {}", self.name, self.to.port()));
        }
        let judge = |rules: &Rules| self.machine.decide(rules, Some(&self.name), self.to);
        let stream = dial::dial(&self.machine, self.to, judge)
            .await
            .map_err(|error| format!("{} cannot be reached: {error}", self.name))?;
        let config = client::Config {
            preferred: Preferred { key: Cow::Owned(algorithms), ..Preferred::DEFAULT },
            inactivity_timeout: None,
            ..client::Config::default()
        };
        let known = Arc::new(AtomicBool::new(true));
        let check = Check {
            known_hosts: known_hosts.clone(),
            name: self.name.clone(),
            port: self.to.port(),
            known: known.clone(),
        };
        let mut handle = client::connect_stream(Arc::new(config), stream, check).await.map_err(|error| {
            if known.load(Ordering::Relaxed) {
                format!("{} cannot be talked to: {error}", self.name)
            } else {
                format!("the key of {} is not the one in known_hosts", self.name)
            }
        })?;
        let hash = handle.best_supported_rsa_hash().await.ok().flatten().flatten();
        let key = PrivateKeyWithHashAlg::new(key.clone(), hash);
        let user = fixed.as_deref().unwrap_or(user);
        match handle.authenticate_publickey(user, key).await {
            Ok(AuthResult::Success) => Ok(handle),
            Ok(AuthResult::Failure { .. }) => Err(format!("{} does not take the key for {user}", self.name)),
            Err(error) => Err(format!("{} broke off: {error}", self.name)),
        }
    }
}

pub struct Check {
    known_hosts: super::KnownHosts,
    name: HostName,
    port: u16,
    known: Arc<AtomicBool>,
}

impl client::Handler for Check {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let known = match key {
            PublicKeyOrCertificate::PublicKey { key, .. } => {
                self.known_hosts.knows(&self.name, self.port, key)
            }
            PublicKeyOrCertificate::Certificate(_) => false,
        };
        self.known.store(known, Ordering::Relaxed);
        Ok(known)
    }
}
