//! A machine's terms, made ready: values parsed into what is put on a wire.

use crate::{
    bridge::{
        inject::{
            rewrite,
            scrub::{Finder, TooMuch},
        },
        ssh::KnownHosts,
        upstream,
    },
    control::{Secret, Terms},
};
use aho_corasick::AhoCorasick;
use base64::{Engine, engine::general_purpose::STANDARD};
use berth_types::{
    UserId,
    egress::{Binding, EgressPolicy, HostName, Projection, SecretName, SecretValue},
};
use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use russh::keys::PrivateKey;
use rustls::sign::CertifiedKey;
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};
use zeroize::Zeroizing;

/// By the names of the secrets that are searched for: many hosts may have the same.
type Finders = HashMap<Vec<SecretName>, Result<Option<Arc<Finder>>, TooMuch>>;
const MAX_FINDERS: usize = 16;

pub struct Rules {
    pub owner: UserId,
    pub policy: EgressPolicy,
    pub secrets: Vec<Arc<Ready>>,
    pub info: Bytes,
    /// What to look for in responses, made once.
    finders: Mutex<Finders>,
}

/// A secret that can be applied, or the reason why it cannot.
pub struct Ready {
    pub name: SecretName,
    pub binding: Binding,
    pub value: SecretValue,
    pub placeholder: String,
    pub forms: Vec<Form>,
    pub broken: Option<String>,
    /// Finds the placeholder, for secrets that have one in requests.
    pub finder: Option<AhoCorasick>,
}

pub enum Form {
    Header(HeaderName, HeaderValue),
    Certificate(Arc<CertifiedKey>),
    Placeholder,
    Ssh(Ssh),
}

pub struct Ssh {
    pub key: Arc<PrivateKey>,
    pub user: Option<String>,
    pub known_hosts: KnownHosts,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Can this value be shown in these forms? hostd asks before it keeps one.
pub fn check(binding: &Binding, value: &SecretValue) -> Result<(), String> {
    binding.check(value).map_err(|error| error.to_string())?;
    binding.projections().iter().try_for_each(|projection| form(projection, value).map(drop))
}

fn form(projection: &Projection, value: &SecretValue) -> Result<Form, String> {
    match projection {
        Projection::Header { name, template } => {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| error.to_string())?;
            let text = std::str::from_utf8(value.expose()).map_err(|_| "the value is no text")?;
            Ok(Form::Header(name, sensitive(template.replacen("{}", text, 1).as_bytes())?))
        }
        Projection::Basic { user } => {
            let mut pair = Zeroizing::new(user.as_bytes().to_vec());
            pair.push(b':');
            pair.extend_from_slice(value.expose());
            let text = Zeroizing::new(format!("Basic {}", STANDARD.encode(&*pair)));
            Ok(Form::Header(AUTHORIZATION, sensitive(text.as_bytes())?))
        }
        Projection::ClientCertificate => Ok(Form::Certificate(Arc::new(upstream::identity(value.expose())?))),
        Projection::Placeholder => Ok(Form::Placeholder),
        Projection::Ssh { user, known_hosts } => {
            let text = std::str::from_utf8(value.expose()).map_err(|_| "the value is no private key")?;
            // A key file ends with a line break, which input may have lost.
            let text = Zeroizing::new(format!("{}\n", text.trim_end()));
            let key = russh::keys::decode_secret_key(&text, None)
                .map_err(|_| "the value is no private key without a passphrase")?;
            let known_hosts = KnownHosts::parse(known_hosts)?;
            Ok(Form::Ssh(Ssh { key: Arc::new(key), user: user.clone(), known_hosts }))
        }
    }
}

fn sensitive(bytes: &[u8]) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_bytes(bytes).map_err(|_| "the value cannot be a header's")?;
    value.set_sensitive(true);
    Ok(value)
}

impl Ready {
    fn new(secret: Secret) -> Self {
        let forms: Result<Vec<_>, _> =
            secret.binding.check(&secret.value).map_err(|error| error.to_string()).and_then(|()| {
                secret.binding.projections().iter().map(|one| form(one, &secret.value)).collect()
            });
        let (forms, broken) = match forms {
            Ok(forms) => (forms, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let has_placeholder = forms.iter().any(|form| matches!(form, Form::Placeholder));
        let finder = has_placeholder.then(|| AhoCorasick::new([&secret.placeholder]).ok()).flatten();
        let Secret { name, binding, value, placeholder } = secret;
        Self { name, binding, value, placeholder, forms, broken, finder }
    }

    /// Is it for HTTP, rather than for SSH?
    pub fn is_http(&self) -> bool {
        !self.binding.projections().iter().any(|projection| matches!(projection, Projection::Ssh { .. }))
    }

    /// Can it come back in a response?
    pub fn is_text(&self) -> bool {
        self.binding.projections().iter().any(Projection::is_text)
    }

    /// As decisions and refusals call it.
    pub fn rule(&self) -> String {
        format!("secret {}", self.name)
    }
}

impl Rules {
    pub fn new(terms: Terms) -> Self {
        Self {
            owner: terms.owner,
            policy: terms.policy,
            secrets: terms.secrets.into_iter().map(|secret| Arc::new(Ready::new(secret))).collect(),
            info: Bytes::from(terms.info.to_string()),
            finders: Mutex::default(),
        }
    }

    /// The secrets for a host over TLS, unless its TLS is to be left alone.
    pub fn for_tls(&self, name: &HostName, port: u16) -> Vec<Arc<Ready>> {
        if self.policy.passes_tls(name, port) {
            return Vec::new();
        }
        let applies = |secret: &&Arc<Ready>| secret.is_http() && secret.binding.goes_to(name, port).is_some();
        self.secrets.iter().filter(applies).cloned().collect()
    }

    /// What to look for in responses to requests with these secrets.
    pub fn finder(&self, secrets: &[Arc<Ready>]) -> Result<Option<Arc<Finder>>, TooMuch> {
        let mut finders = self.finders.lock().unwrap_or_else(PoisonError::into_inner);
        let names = secrets.iter().map(|secret| secret.name.clone()).collect();
        if finders.len() >= MAX_FINDERS && !finders.contains_key(&names) {
            finders.clear();
        }
        let make = || Ok(rewrite::needles(secrets).build()?.map(Arc::new));
        finders.entry(names).or_insert_with(make).clone()
    }

    /// The secrets that a host has on a port other than 443 by a rule that names the port.
    pub fn names_port(&self, name: &HostName, port: u16) -> bool {
        self.secrets.iter().any(|secret| {
            secret.is_http() && secret.binding.goes_to(name, port).is_some_and(|to| to.port == Some(port))
        })
    }

    /// The key for a host over SSH.
    pub fn for_ssh(&self, name: &HostName, port: u16) -> Option<Arc<Ready>> {
        let applies = |secret: &&Arc<Ready>| {
            let to = secret.binding.goes_to(name, port);
            // A rule without a port means the usual one.
            !secret.is_http() && to.is_some_and(|to| to.port.unwrap_or(22) == port)
        };
        self.secrets.iter().find(applies).cloned()
    }

    /// Any secret of a host, whatever the port: plain HTTP must not reach it.
    pub fn for_plain(&self, name: &HostName) -> Option<Arc<Ready>> {
        let applies = |secret: &&Arc<Ready>| {
            secret.is_http() && secret.binding.to().iter().any(|to| to.matches_name(name))
        };
        self.secrets.iter().find(applies).cloned()
    }
}
