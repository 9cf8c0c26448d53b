//! One request and its response.

use super::{
    body::{Download, Line, Upload},
    gate, response, rewrite,
    scrub::{Finder, Stream, Style, TooMuch},
    session::{Session, rule},
    websocket::{self, Frames},
};
use crate::{
    bridge::{
        refuse::Refused,
        replay::Tally,
        rules::{Ready, Rules},
        sni::Http,
    },
    control::Outcome,
};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Incoming},
    header::{ACCEPT, CONTENT_LENGTH, HeaderValue, SEC_WEBSOCKET_EXTENSIONS, UPGRADE},
    http::request::Parts,
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tokio::time::timeout;

/// Between two parts of a body that is collected.
const BETWEEN_PARTS: Duration = Duration::from_secs(60);

impl Session {
    pub async fn exchange(self: Arc<Self>, request: Request<Incoming>) -> Response<Download> {
        let accept = request.headers().get(ACCEPT).cloned();
        let number = self.watch.begin();
        let misframed = || self.watch.fault(number).map(|fault| self.misframed(fault));
        let forwarded = match misframed() {
            Some(refused) => Err(refused),
            None => self.forward(request).await,
        };
        let response = match forwarded {
            Ok(response) => response,
            Err(refused) => {
                // It may have broken off because it was stopped.
                let refused = misframed().unwrap_or(refused);
                let mut decision = self.decision();
                refused.note(&mut decision);
                if refused.status != StatusCode::FORBIDDEN {
                    decision.verdict = Outcome::Failed;
                }
                self.machine.host.reporter.decided(decision);
                refused.response(accept.as_ref()).map(Download::Own)
            }
        };
        self.watch.end(response.status() == StatusCode::SWITCHING_PROTOCOLS);
        response
    }

    async fn forward(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Download>, Refused> {
        if let Some(refused) = self.standing() {
            return Err(refused);
        }
        let rules = self.machine.rules();
        let secrets = rules.for_tls(&self.name, self.to.port());
        self.gates(&rules, &secrets, &request)?;
        let upgrade = self.upgrade(&mut request, &secrets)?;
        let (mut parts, body) = request.into_parts();
        let method = parts.method.clone();
        let extra = rewrite::request(&mut parts, &secrets, upgrade.is_some())
            .map_err(|unfit| Refused::new(rule(&secrets), unfit.0, "change the request"))?;
        let finder = self.finder(&rules, &secrets, extra).map_err(|TooMuch| {
            let message = "one host has more secrets than its answers can be searched for";
            Refused::new(rule(&secrets), message, "remove some, or have fewer go to this host")
        })?;
        let up = Arc::new(AtomicU64::new(0));
        let body = self.upload(&mut parts, &secrets, body, up.clone()).await?;
        if self.http == Http::One {
            // The server is known by its connection; what it wants is the path.
            let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
            parts.uri =
                path.parse().map_err(|_| Refused::new(rule(&secrets), "no path", "change the request"))?;
        }
        let response = self.send(&rules, Request::from_parts(parts, body)).await?;
        let mut decision = self.decision();
        decision.verdict = Outcome::Allowed;
        decision.rule = rule(&secrets);
        let reporter = self.machine.host.reporter.clone();
        let line = Line { decision: Some(decision), up, down: 0, reporter };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(response, upgrade, finder, line, &secrets);
        }
        response::scrub(response, &method, finder, line).map_err(|unreadable| {
            Refused::new(
                rule(&secrets),
                unreadable.0,
                "ask the server for another encoding, and for all of it",
            )
        })
    }

    fn finder(
        &self,
        rules: &Rules,
        secrets: &[Arc<Ready>],
        extra: rewrite::Extra,
    ) -> Result<Option<Arc<Finder>>, TooMuch> {
        if extra.is_empty() {
            return rules.finder(secrets);
        }
        let mut needles = rewrite::needles(secrets);
        for (needle, placeholder) in extra {
            needles.add(needle.to_vec(), &placeholder);
        }
        Ok(needles.build()?.map(Arc::new))
    }

    fn gates(
        &self,
        rules: &Rules,
        secrets: &[Arc<Ready>],
        request: &Request<Incoming>,
    ) -> Result<(), Refused> {
        if !self.is_allowed(rules) {
            let verdict = self.machine.decide(rules, Some(&self.name), self.to);
            return Err(Refused::new(verdict.rule.to_string(), "the policy refuses it", "see 'egress'"));
        }
        if let Some(broken) = secrets.iter().find(|secret| secret.broken.is_some()) {
            let why = broken.broken.clone().unwrap_or_default();
            return Err(Refused::new(broken.rule(), why, "set the secret again"));
        }
        gate::check(request, &self.name, self.to.port())
            .map_err(|why| Refused::new(rule(secrets), why, "send one request to one host"))
    }

    /// The guest's end of a WebSocket; other protocols to switch to are refused.
    fn upgrade(
        &self,
        request: &mut Request<Incoming>,
        secrets: &[Arc<Ready>],
    ) -> Result<Option<OnUpgrade>, Refused> {
        let mut wishes = request.headers().get_all(UPGRADE).iter();
        let Some(to) = wishes.next() else { return Ok(None) };
        // Of two the server would choose.
        let websocket = to.as_bytes().eq_ignore_ascii_case(b"websocket") && wishes.next().is_none();
        if self.http == Http::One && websocket && request.method() == Method::GET {
            return Ok(Some(hyper::upgrade::on(request)));
        }
        if self.http == Http::One && to.as_bytes().eq_ignore_ascii_case(b"h2c") {
            // A client that would rather speak HTTP/2 is content without.
            request.headers_mut().remove(UPGRADE);
            return Ok(None);
        }
        Err(Refused::new(rule(secrets), "only WebSocket can be switched to", "do not ask to upgrade"))
    }

    /// A body of known length is searched for placeholders; others go by.
    async fn upload(
        &self,
        parts: &mut Parts,
        secrets: &[Arc<Ready>],
        body: Incoming,
        up: Arc<AtomicU64>,
    ) -> Result<Upload, Refused> {
        let limit = u64::from(self.machine.host.shared().limits.body_bytes);
        let known = body.size_hint().exact().filter(|length| (1..=limit).contains(length));
        let (Some(length), true) = (known, secrets.iter().any(|secret| rewrite::has_placeholder(secret)))
        else {
            return Ok(Upload::Stream(body, up));
        };
        let limits = self.machine.host.shared().limits;
        // The body, and what it becomes.
        let (bytes, most) = (2 * length, limits.machine_bodies_bytes.into());
        let taken = match self.http {
            Http::One => self.machine.bodies.take(bytes, most).await,
            // To wait would hold up the other streams, and those that are collected
            // with them. Without a length, which HTTP/2 can do without, nobody waits.
            Http::Two => match self.machine.bodies.try_take(bytes, most) {
                Some(taken) => taken,
                None => return Ok(self.replaced(parts, secrets, body, up)),
            },
        };
        let whole = collect(body, usize::try_from(length).unwrap_or(usize::MAX))
            .await
            .map_err(|why| Refused::new(rule(secrets), why, "send it again"))?;
        up.store(whole.len() as u64, std::sync::atomic::Ordering::Relaxed);
        // A placeholder is short, and a value may be long.
        let grown = self.machine.bodies.try_take(rewrite::growth(parts, secrets, &whole), most);
        let grown = grown.ok_or_else(|| {
            let message = "the machine has too much under way for what this request becomes";
            Refused::new(rule(secrets), message, "send fewer placeholders, or try again later")
        })?;
        let whole = match rewrite::body(parts, secrets, &whole) {
            Some(replaced) => Bytes::from_owner(replaced),
            None => whole,
        };
        if parts.headers.contains_key(CONTENT_LENGTH) {
            parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(whole.len()));
        }
        Ok(Upload::Whole { body: Full::new(whole), _memory: [taken, grown] })
    }

    /// A body in which placeholders are replaced as it goes by.
    fn replaced(
        &self,
        parts: &mut Parts,
        secrets: &[Arc<Ready>],
        body: Incoming,
        up: Arc<AtomicU64>,
    ) -> Upload {
        match rewrite::replacements(parts, secrets) {
            Some(finder) => {
                parts.headers.remove(CONTENT_LENGTH);
                Upload::replaced(body, Stream::new(Arc::new(finder), Style::Text), up)
            }
            None => Upload::Stream(body, up),
        }
    }

    /// Joins both ends of a WebSocket. What the server says is searched.
    fn switch(
        self: &Arc<Self>,
        mut response: Response<Incoming>,
        guest: Option<OnUpgrade>,
        finder: Option<Arc<Finder>>,
        mut line: Line,
        secrets: &[Arc<Ready>],
    ) -> Result<Response<Download>, Refused> {
        let refuse = |line: &mut Line, message: &str| {
            line.forget();
            Err(Refused::new(rule(secrets), message, "try again, without extensions of WebSocket"))
        };
        let Some(guest) = guest else {
            return refuse(&mut line, "the server switched protocols unasked");
        };
        if finder.is_some() && response.headers().contains_key(SEC_WEBSOCKET_EXTENSIONS) {
            return refuse(&mut line, "the server uses an extension of WebSocket that was not asked for");
        }
        let server = hyper::upgrade::on(&mut response);
        let mut answer = Response::new(Download::Own(Full::default()));
        *answer.status_mut() = response.status();
        *answer.headers_mut() = std::mem::take(response.headers_mut());
        if let Some(finder) = &finder {
            super::body::scrub_headers(answer.headers_mut(), finder, &mut line);
        }
        let session = self.clone();
        tokio::spawn(async move {
            let (Ok(guest), Ok(server)) = tokio::join!(guest, server) else { return };
            let (mut guest, mut server) = (Tally::new(TokioIo::new(guest)), TokioIo::new(server));
            let mut frames = finder.map(Frames::new);
            let joined = async {
                match &mut frames {
                    Some(frames) => websocket::join(&mut guest, &mut server, frames).await,
                    // However it ends, it has ended.
                    None => tokio::io::copy_bidirectional(&mut guest, &mut server).await.map(drop),
                }
            };
            let ended = tokio::select! {
                ended = joined => ended,
                () = session.no_longer_allowed() => {
                    session.report_cut();
                    Ok(())
                }
            };
            if let Err(error) = ended
                && error.kind() == std::io::ErrorKind::InvalidData
            {
                line.say(&format!("the server's WebSocket cannot be searched: {error}"));
            }
            if frames.is_some_and(|frames| frames.has_replaced()) {
                line.scrubbed();
            }
            line.moved(guest.read, guest.written);
        });
        Ok(answer)
    }
}

/// All of a body, which has to keep coming: others wait for its room.
async fn collect(mut body: Incoming, length: usize) -> Result<Bytes, &'static str> {
    let mut whole = BytesMut::new();
    loop {
        match timeout(BETWEEN_PARTS, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    whole.extend_from_slice(&data);
                }
            }
            Ok(None) if whole.len() == length => return Ok(whole.freeze()),
            Ok(None | Some(Err(_))) => return Err("the request broke off"),
            Err(_) => return Err("the rest of the request did not come"),
        }
        if whole.len() > length {
            return Err("the request is longer than it says");
        }
    }
}
