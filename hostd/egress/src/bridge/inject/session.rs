//! One guest's connection to one secret's host, and the connection behind it.

use super::{
    body::Upload,
    guard::Watch,
    head::Fault,
    spares::{self, Place},
    windows::{READ, SEND, Windows},
};
use crate::{
    bridge::{
        dial::{self, DialError},
        flow,
        machine::Machine,
        refuse::Refused,
        rules::{Form, Ready, Rules},
        sni::{ClientHello, Http},
    },
    control::{Decision, Outcome, Protocol},
};
use berth_types::egress::HostName;
use hyper::{Request, Response, body::Incoming, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use std::{
    io,
    net::SocketAddrV4,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

const HANDSHAKE: Duration = Duration::from_secs(15);

pub struct Session {
    pub machine: Arc<Machine>,
    pub name: HostName,
    pub to: SocketAddrV4,
    /// What both sides speak.
    pub http: Http,
    /// How the guest's requests are framed, if they are HTTP/1.
    pub watch: Arc<Watch>,
    /// Why nothing can ever pass here.
    standing: Option<Refused>,
    /// Why the first attempt failed; the first request hears of it.
    failed: Mutex<Option<Refused>>,
    upstream: tokio::sync::Mutex<Option<Upstream>>,
    offer: Vec<Http>,
}

pub struct Upstream {
    /// A change of rules may be a change of certificate.
    pub rules: Arc<Rules>,
    sender: Sender,
}

enum Sender {
    One(conn::http1::SendRequest<Upload>),
    Two(conn::http2::SendRequest<Upload>),
}

/// The rule that refusals and decisions name.
pub fn rule(secrets: &[Arc<Ready>]) -> String {
    secrets.iter().map(|secret| secret.rule()).collect::<Vec<_>>().join(", ")
}

impl Session {
    pub async fn open(
        machine: Arc<Machine>,
        name: HostName,
        to: SocketAddrV4,
        hello: &ClientHello,
        tied: bool,
    ) -> Self {
        let preferred = hello.http.first().copied().unwrap_or(Http::One);
        let rules = machine.rules();
        let mut session = Self {
            machine,
            name,
            to,
            http: preferred,
            watch: Arc::default(),
            standing: None,
            failed: Mutex::new(None),
            upstream: tokio::sync::Mutex::new(None),
            offer: hello.http.clone(),
        };
        if !tied {
            let rule = rule(&rules.for_tls(&session.name, to.port()));
            let message = format!("{} was not resolved to {} for this machine", session.name, to.ip());
            session.standing =
                Some(Refused::new(rule, message, "connect by name, without an address of your own"));
            return session;
        }
        if let Some(upstream) = session.machine.spares.take(&session.place(), &rules) {
            session.http = upstream.http();
            session.upstream = tokio::sync::Mutex::new(Some(upstream));
            return session;
        }
        match session.connect(&rules, &hello.http).await {
            Ok((upstream, http)) => {
                session.http = http;
                session.upstream = tokio::sync::Mutex::new(Some(upstream));
            }
            Err(refused) => session.failed = Mutex::new(Some(refused)),
        }
        session
    }

    async fn connect(&self, rules: &Arc<Rules>, offer: &[Http]) -> Result<(Upstream, Http), Refused> {
        let secrets = rules.for_tls(&self.name, self.to.port());
        let rule = || rule(&secrets);
        let identity = secrets.iter().flat_map(|secret| &secret.forms).find_map(|form| match form {
            Form::Certificate(identity) => Some(identity.clone()),
            _ => None,
        });
        let judge = |rules: &Rules| self.machine.decide(rules, Some(&self.name), self.to);
        let stream = dial::dial(&self.machine, self.to, judge).await.map_err(|error| match error {
            DialError::Refused(by) => {
                Refused::new(rule(), by.to_string(), "see 'egress NAME' for what it may reach")
            }
            DialError::Io(error) => {
                Refused::unreachable(rule(), format!("{} cannot be reached: {error}", self.name))
            }
        })?;
        let shared = self.machine.host.shared();
        let config = shared.trust.client(offer, identity);
        let server = ServerName::try_from(self.name.to_string())
            .map_err(|_| Refused::new(rule(), "no certificate can be for this name", "use another name"))?;
        let stream = match timeout(HANDSHAKE, TlsConnector::from(config).connect(server, stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.explain(rule(), &error)),
            Err(_) => return Err(Refused::unreachable(rule(), format!("{} does not answer", self.name))),
        };
        let (sender, http) = self.speak(stream).await.map_err(|error| {
            Refused::unreachable(rule(), format!("{} does not speak HTTP: {error}", self.name))
        })?;
        Ok((Upstream { rules: rules.clone(), sender }, http))
    }

    fn explain(&self, rule: String, error: &io::Error) -> Refused {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(rustls::Error::InvalidCertificate(why)) => Refused::new(
                rule,
                format!("the certificate of {} does not hold: {why:?}", self.name),
                "nothing was sent; a private authority goes to egress.extra_roots",
            ),
            _ => Refused::unreachable(rule, format!("TLS with {} failed: {error}", self.name)),
        }
    }

    async fn speak(&self, stream: TlsStream<TcpStream>) -> hyper::Result<(Sender, Http)> {
        let limit = self.machine.host.shared().limits.header_bytes;
        let two = stream.get_ref().1.alpn_protocol() == Some(Http::Two.alpn());
        let io = TokioIo::new(stream);
        if two {
            let windows = Windows::of(&self.machine);
            let (sender, connection) = conn::http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(windows.stream)
                .initial_connection_window_size(windows.connection)
                .max_send_buf_size(SEND)
                .max_header_list_size(limit)
                .handshake(io)
                .await?;
            tokio::spawn(async move {
                let _windows = windows;
                connection.await
            });
            return Ok((Sender::Two(sender), Http::Two));
        }
        let (sender, connection) = conn::http1::Builder::new()
            .preserve_header_case(true)
            .max_header_size(limit as usize)
            .max_buf_size(READ)
            .handshake(io)
            .await?;
        tokio::spawn(connection.with_upgrades());
        Ok((Sender::One(sender), Http::One))
    }

    fn place(&self) -> Place {
        Place { name: self.name.clone(), to: self.to, offer: self.offer.clone() }
    }

    /// Why nothing passes, if nothing does.
    pub fn standing(&self) -> Option<Refused> {
        self.standing.clone().or_else(|| self.failed.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    /// Sends a request, on a new connection if the old one is gone.
    pub async fn send(
        &self,
        rules: &Arc<Rules>,
        mut request: Request<Upload>,
    ) -> Result<Response<Incoming>, Refused> {
        let mut again = true;
        loop {
            let mut upstream = self.upstream.lock().await;
            if !upstream.as_mut().is_some_and(|upstream| upstream.serves(rules)) {
                let (fresh, http) = self.connect(rules, &[self.http]).await?;
                if http != self.http {
                    return Err(self.broken(rules, "the server changed its protocol".to_owned()));
                }
                *upstream = Some(fresh);
                again = false;
            }
            let Some(Upstream { sender, .. }) = upstream.as_mut() else { continue };
            let sent = match sender {
                Sender::One(sender) => {
                    if sender.ready().await.is_err() {
                        *upstream = None;
                        continue;
                    }
                    sender.try_send_request(request).await
                }
                Sender::Two(sender) => {
                    let mut sender = sender.clone();
                    drop(upstream);
                    sender.try_send_request(request).await
                }
            };
            match sent {
                Ok(response) => return Ok(response),
                // It never left: the server had closed a kept connection.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if again => {
                        request = unsent;
                        again = false;
                        *self.upstream.lock().await = None;
                    }
                    _ => return Err(self.broken(rules, error.into_error().to_string())),
                },
            }
        }
    }

    fn broken(&self, rules: &Rules, reason: String) -> Refused {
        let rule = rule(&rules.for_tls(&self.name, self.to.port()));
        Refused::unreachable(rule, format!("{} broke off: {reason}", self.name))
    }

    pub fn decision(&self) -> Decision {
        flow::decision(&self.machine, Protocol::Https, Some(&self.name), self.to)
    }

    pub fn is_allowed(&self, rules: &Rules) -> bool {
        self.machine.decide(rules, Some(&self.name), self.to).allowed
    }

    pub async fn no_longer_allowed(&self) {
        self.machine.changed_until(|rules| self.is_allowed(rules)).await;
    }

    pub fn report_cut(&self) {
        let rules = self.machine.rules();
        let verdict = self.machine.decide(&rules, Some(&self.name), self.to);
        if !verdict.allowed {
            let mut decision = self.decision();
            decision.rule = verdict.rule.to_string();
            decision.reason = "closed: no longer allowed".to_owned();
            self.machine.host.reporter.decided(decision);
        }
    }

    /// A request that could be read in two ways.
    pub fn misframed(&self, fault: Fault) -> Refused {
        let rule = rule(&self.machine.rules().for_tls(&self.name, self.to.port()));
        Refused::new(rule, fault, "send requests as RFC 9112 has them")
    }

    pub fn report_fault(&self, fault: Fault) {
        let mut decision = self.decision();
        self.misframed(fault).note(&mut decision);
        self.machine.host.reporter.decided(decision);
    }

    pub fn report_handshake(&self, reason: &str) {
        let mut decision = self.decision();
        decision.verdict = Outcome::Failed;
        decision.rule = rule(&self.machine.rules().for_tls(&self.name, self.to.port()));
        decision.reason = format!("the guest did not take the bridge's certificate: {reason}");
        self.machine.host.reporter.decided(decision);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(upstream) = self.upstream.get_mut().take() {
            spares::keep(&self.machine, self.place(), upstream);
        }
    }
}

impl Upstream {
    const fn http(&self) -> Http {
        match self.sender {
            Sender::One(_) => Http::One,
            Sender::Two(_) => Http::Two,
        }
    }

    /// Everything that was asked was answered, and more may be.
    pub fn is_idle(&self) -> bool {
        match &self.sender {
            Sender::One(sender) => sender.is_ready(),
            Sender::Two(sender) => sender.is_ready(),
        }
    }

    fn serves(&mut self, rules: &Arc<Rules>) -> bool {
        let open = match &self.sender {
            Sender::One(sender) => !sender.is_closed(),
            Sender::Two(sender) => !sender.is_closed(),
        };
        open && Arc::ptr_eq(&self.rules, rules)
    }
}
