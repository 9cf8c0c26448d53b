//! Secrets: a name, and a binding that says to whom and in which form the
//! value is shown. The value itself is never part of it.

use crate::egress::{Host, HostName, HostPattern, InvalidValue, SecretValue};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

const MAX_NAME: usize = 64;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a secret's name is 1 to 64 of a-z, A-Z, 0-9, '-' and '_', starting with a letter")]
pub struct InvalidSecretName;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretName(String);

impl SecretName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Can a shell have a variable of this name?
    pub fn is_variable(&self) -> bool {
        !self.0.contains('-')
    }
}

impl FromStr for SecretName {
    type Err = InvalidSecretName;

    fn from_str(text: &str) -> Result<Self, InvalidSecretName> {
        let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
        if letters && first && text.len() <= MAX_NAME {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidSecretName)
        }
    }
}

impl TryFrom<String> for SecretName {
    type Error = InvalidSecretName;

    fn try_from(text: String) -> Result<Self, InvalidSecretName> {
        text.parse()
    }
}

impl From<SecretName> for String {
    fn from(name: SecretName) -> Self {
        name.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One form in which a value is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Projection {
    /// A request's header; `{}` in the template stands for the value.
    Header { name: String, template: String },
    /// `Authorization: Basic`, the value being the password.
    Basic { user: String },
    /// The value is a certificate chain and its key, in PEM.
    ClientCertificate,
    /// The machine has a placeholder, which requests carry to where it is replaced.
    Placeholder,
    /// The value is a private key; `user` replaces the login if it is there.
    /// `known_hosts` are lines of that file, and the only hosts believed.
    Ssh { user: Option<String>, known_hosts: Vec<String> },
}

impl Projection {
    /// Is the value text that is sent in a request, and may come back in a response?
    pub const fn is_text(&self) -> bool {
        matches!(self, Self::Header { .. } | Self::Basic { .. } | Self::Placeholder)
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidBinding {
    #[error("a secret needs a host to go to")]
    NoHost,
    #[error("a secret goes to hosts by name, so that their certificate can be checked, not to {0}")]
    Network(HostPattern),
    #[error("{0} would include hosts of anybody")]
    TooWide(HostPattern),
    #[error("a secret needs a form: a header, basic, a client certificate, a placeholder or ssh")]
    NoProjection,
    #[error("a key or certificate cannot be shown in another form as well")]
    Mixed,
    #[error("not the name of a header: {0:?}")]
    HeaderName(String),
    #[error("the header {0:?} belongs to the connection and cannot carry a secret")]
    HeaderReserved(String),
    #[error("a header's template has one '{{}}' for the value and no control characters")]
    Template,
    #[error("a user for basic authentication has no ':' and no control characters")]
    User,
    #[error("ssh needs at least one line of known_hosts")]
    KnownHosts,
}

/// To whom a secret goes, and in which forms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked", into = "Unchecked")]
pub struct Binding {
    to: Vec<HostPattern>,
    projections: Vec<Projection>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    to: Vec<HostPattern>,
    projections: Vec<Projection>,
}

impl Binding {
    pub fn new(to: Vec<HostPattern>, projections: Vec<Projection>) -> Result<Self, InvalidBinding> {
        if to.is_empty() {
            return Err(InvalidBinding::NoHost);
        }
        for pattern in &to {
            match &pattern.host {
                Host::Name(_) => {}
                Host::Below(parent) if parent.parent().is_some() => {}
                Host::Below(_) => return Err(InvalidBinding::TooWide(pattern.clone())),
                Host::Network(_) => return Err(InvalidBinding::Network(pattern.clone())),
            }
        }
        if projections.is_empty() {
            return Err(InvalidBinding::NoProjection);
        }
        if projections.len() > 1 && !projections.iter().all(Projection::is_text) {
            return Err(InvalidBinding::Mixed);
        }
        projections.iter().try_for_each(check)?;
        Ok(Self { to, projections })
    }

    pub fn to(&self) -> &[HostPattern] {
        &self.to
    }

    pub fn projections(&self) -> &[Projection] {
        &self.projections
    }

    /// The pattern by which this secret goes to a host, if it does.
    pub fn goes_to(&self, name: &HostName, port: u16) -> Option<&HostPattern> {
        self.to.iter().find(|pattern| pattern.matches_port(port) && pattern.matches_name(name))
    }

    /// Can this value be shown in these forms? Keys and certificates are
    /// looked into by the bridge.
    pub fn check(&self, value: &SecretValue) -> Result<(), InvalidValue> {
        value.check(self.projections.iter().any(Projection::is_text))
    }
}

/// Headers that say how a message is framed or where it goes, not what it says.
const RESERVED: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

fn check(projection: &Projection) -> Result<(), InvalidBinding> {
    let plain = |text: &str| text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    match projection {
        Projection::Header { name, template } => {
            let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.is_empty() || name.len() > 128 || !name.bytes().all(token) {
                return Err(InvalidBinding::HeaderName(name.chars().take(128).collect()));
            }
            if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
                return Err(InvalidBinding::HeaderReserved(name.clone()));
            }
            if template.matches("{}").count() != 1 || !plain(template) {
                return Err(InvalidBinding::Template);
            }
        }
        Projection::Basic { user } => {
            if user.contains(':') || !plain(user) {
                return Err(InvalidBinding::User);
            }
        }
        Projection::Ssh { known_hosts, .. } => {
            if known_hosts.is_empty() {
                return Err(InvalidBinding::KnownHosts);
            }
        }
        Projection::ClientCertificate | Projection::Placeholder => {}
    }
    Ok(())
}

impl TryFrom<Unchecked> for Binding {
    type Error = InvalidBinding;

    fn try_from(unchecked: Unchecked) -> Result<Self, InvalidBinding> {
        Self::new(unchecked.to, unchecked.projections)
    }
}

impl From<Binding> for Unchecked {
    fn from(binding: Binding) -> Self {
        Self { to: binding.to, projections: binding.projections }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(to: &[&str], projections: Vec<Projection>) -> Result<Binding, InvalidBinding> {
        Binding::new(to.iter().map(|text| text.parse().unwrap()).collect(), projections)
    }

    fn header(name: &str, template: &str) -> Projection {
        Projection::Header { name: name.to_owned(), template: template.to_owned() }
    }

    #[test]
    fn names() {
        for good in ["openai", "STRIPE_KEY", "corp-mtls", "a1"] {
            assert!(good.parse::<SecretName>().is_ok(), "{good}");
        }
        for bad in ["", "1a", "-a", "_a", "a b", "a=b", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<SecretName>().is_err(), "{bad}");
        }
        assert!("STRIPE_KEY".parse::<SecretName>().unwrap().is_variable());
        assert!(!"corp-mtls".parse::<SecretName>().unwrap().is_variable());
    }

    #[test]
    fn a_binding_goes_where_it_says() {
        let binding =
            binding(&["api.example.com", "*.corp.example:8443"], vec![Projection::Placeholder]).unwrap();
        let goes = |name: &str, port| binding.goes_to(&name.parse().unwrap(), port).is_some();
        assert!(goes("api.example.com", 443));
        assert!(goes("grpc.corp.example", 8443));
        assert!(!goes("grpc.corp.example", 443));
        assert!(!goes("example.com", 443));
    }

    #[test]
    fn bindings_that_could_not_be_kept_are_refused() {
        let basic = || Projection::Basic { user: "me".to_owned() };
        let ssh = |lines: &[&str]| Projection::Ssh {
            user: None,
            known_hosts: lines.iter().map(|line| (*line).to_owned()).collect(),
        };
        for (to, projections, why) in [
            (&[][..], vec![basic()], InvalidBinding::NoHost),
            (&["10.0.0.1"], vec![basic()], InvalidBinding::Network("10.0.0.1".parse().unwrap())),
            (&["*.com"], vec![basic()], InvalidBinding::TooWide("*.com".parse().unwrap())),
            (&["a.example"], vec![], InvalidBinding::NoProjection),
            (&["a.example"], vec![basic(), Projection::ClientCertificate], InvalidBinding::Mixed),
            (&["a.example"], vec![header("a b", "{}")], InvalidBinding::HeaderName("a b".to_owned())),
            (&["a.example"], vec![header("Host", "{}")], InvalidBinding::HeaderReserved("Host".to_owned())),
            (&["a.example"], vec![header("x", "no place")], InvalidBinding::Template),
            (&["a.example"], vec![header("x", "{} {}")], InvalidBinding::Template),
            (&["a.example"], vec![header("x", "{}\r\ny: z")], InvalidBinding::Template),
            (&["a.example"], vec![Projection::Basic { user: "a:b".to_owned() }], InvalidBinding::User),
            (&["a.example"], vec![ssh(&[])], InvalidBinding::KnownHosts),
        ] {
            assert_eq!(binding(to, projections).unwrap_err(), why);
        }
        let good =
            binding(&["a.example"], vec![header("Authorization", "Bearer {}"), Projection::Placeholder])
                .unwrap();
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(serde_json::from_str::<Binding>(&text).unwrap(), good);
        assert!(serde_json::from_str::<Binding>(r#"{"to":[],"projections":[]}"#).is_err());
    }
}
