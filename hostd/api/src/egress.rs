//! Secrets and policies, as they are asked for and shown.

use base64::{Engine, engine::general_purpose::STANDARD};
use berth_types::{
    MachineName,
    egress::{EgressMode, EgressPolicy, HostPattern, SecretName, SecretValue},
};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;
use zeroize::Zeroizing;

/// A value on its way to hostd. It is never printed and never sent back.
#[derive(Clone)]
pub struct SecretInput(pub SecretValue);

impl fmt::Debug for SecretInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretInput")
    }
}

impl PartialEq for SecretInput {
    fn eq(&self, other: &Self) -> bool {
        self.0.expose() == other.0.expose()
    }
}

impl Eq for SecretInput {}

impl Serialize for SecretInput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Zeroizing::new(STANDARD.encode(self.0.expose())))
    }
}

impl<'de> Deserialize<'de> for SecretInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        // Neither error repeats what it is about.
        let bytes = STANDARD.decode(text.as_bytes()).map_err(|_| D::Error::custom("not base64"))?;
        SecretValue::new(bytes).map(Self).map_err(D::Error::custom)
    }
}

/// Whose policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressTarget {
    Machine(MachineName),
    /// All machines of the user that have none of their own.
    All,
    Label {
        key: String,
        value: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressChange {
    Mode(EgressMode),
    Allow(Vec<HostPattern>),
    Deny(Vec<HostPattern>),
    /// TLS to these is never opened.
    Passthrough(Vec<HostPattern>),
    /// Takes them out of every list.
    Forget(Vec<HostPattern>),
    /// No policy of its own any more.
    Default,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressView {
    pub target: EgressTarget,
    /// Where the policy comes from: `machine`, `label`, `user` or `installation`.
    pub from: String,
    pub policy: EgressPolicy,
    /// In words.
    pub reaches: String,
    /// What no rule of the user's can allow.
    pub never: Vec<HostPattern>,
    /// Rules of the user's that allow nothing, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ineffective: Vec<Ineffective>,
    /// Names of the secrets that apply; only for a machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretName>,
}

/// A rule that allows nothing, for what it names is never reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ineffective {
    pub rule: HostPattern,
    /// As `a loopback address`.
    pub why: String,
}

/// A secret without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretView {
    pub name: SecretName,
    pub to: Vec<HostPattern>,
    /// `header Authorization`, `basic me`, `client certificate`, `placeholder`, `ssh`.
    pub forms: Vec<String>,
    /// Only for this machine and its forks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineName>,
    /// What machines have in its place.
    pub placeholder: String,
    pub created: Timestamp,
    /// When its value was last set.
    pub set: Timestamp,
    /// False: the host cannot open it any more, and it has to be set again.
    pub usable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_crosses_and_is_not_printed() {
        let input = SecretInput(SecretValue::new(b"sk-very-secret".to_vec()).unwrap());
        let text = serde_json::to_string(&input).unwrap();
        assert_eq!(serde_json::from_str::<SecretInput>(&text).unwrap(), input);
        assert_eq!(format!("{input:?}"), "SecretInput");
        let error = serde_json::from_str::<SecretInput>("\"sk-very-secret!\"").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
