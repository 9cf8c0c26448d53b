//! How commit f8cd9a1 wrote its data, and those after it up to c6295b3, which is version 1.
//! FROZEN: never change anything here.
//! What berth reads today is compared with what these write.

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use ed25519_dalek::{Signer as _, SigningKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub generation: u16,
    pub id: String,
    pub owner: String,
    pub name: String,
    pub image: String,
    pub cpus: u32,
    pub memory: u64,
    pub disk: u64,
    pub labels: BTreeMap<String, String>,
    pub created: String,
    pub last_used: String,
    pub uid: u32,
    pub fresh: bool,
    pub state: String,
    pub failure: Option<Value>,
    pub runtime: Option<Value>,
    #[serde(default)]
    pub sleeps_in: Option<String>,
    #[serde(default)]
    pub parent: Option<Value>,
    #[serde(default)]
    pub idle: Option<Value>,
    #[serde(default)]
    pub keepalive_until: Option<String>,
    #[serde(default)]
    pub held: Option<String>,
    #[serde(default)]
    pub schedule: Option<Value>,
    #[serde(default)]
    pub expires: Option<String>,
    #[serde(default)]
    pub egress: Option<EgressPolicy>,
    #[serde(default)]
    pub lineage: Vec<String>,
    #[serde(default)]
    pub no_secrets: bool,
    #[serde(default)]
    pub template: bool,
    #[serde(default)]
    pub woke_from: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EgressPolicy {
    pub mode: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passthrough: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct User {
    pub generation: u16,
    pub id: String,
    pub label: String,
    pub created: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SshKey {
    pub fingerprint: String,
    pub public: String,
    pub comment: String,
    pub added: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct KeyRecord {
    pub owner: String,
    pub key: SshKey,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct UserMirror {
    pub user: User,
    pub keys: Vec<SshKey>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyRecord {
    pub owner: String,
    pub label: Option<(String, String)>,
    pub policy: EgressPolicy,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Meta {
    pub generation: u16,
    pub owner: String,
    pub name: String,
    pub binding: Value,
    #[serde(default)]
    pub machine: Option<String>,
    pub placeholder: String,
    pub created: String,
    pub set: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sealed {
    pub meta: String,
    pub nonce: Vec<u8>,
    pub value: Vec<u8>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Generation {
    pub generation: u16,
    pub id: String,
    pub why: Why,
    pub machine: Option<String>,
    pub owner: Option<String>,
    pub name: String,
    pub created: String,
    pub image: String,
    pub cpus: u32,
    pub memory: u64,
    pub disk: u64,
    pub driver: String,
    pub driver_version: String,
    pub state_size: u64,
    pub state_sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// From commit b041e1f on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<u16>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    Sleep,
    Snapshot(String),
    Template { version: String },
}

/// `manifest.json`: signed as it is without spaces.
pub fn manifest(key: &SigningKey, generation: &Generation) -> Vec<u8> {
    #[derive(Serialize)]
    struct Manifest<'a> {
        generation: &'a Generation,
        signature: String,
    }
    let signature = sign(key, &serde_json::to_vec(generation).unwrap());
    serde_json::to_vec_pretty(&Manifest { generation, signature }).unwrap()
}

/// `machine.json`, `users/ID.json`, `policies/ID.json`; `kind` is "a machine", "a user" or
/// "policies".
pub fn mirror<T: Serialize>(key: &SigningKey, kind: &str, value: &T) -> Vec<u8> {
    #[derive(Serialize)]
    struct Signed {
        text: String,
        signature: String,
    }
    let text = serde_json::to_string(value).unwrap();
    let signature = sign(key, format!("berth mirror 1: {kind}\0{text}").as_bytes());
    serde_json::to_vec_pretty(&Signed { text, signature }).unwrap()
}

pub fn seal<T: Serialize>(master: &[u8; 32], meta: &T, value: &[u8]) -> Sealed {
    let meta = serde_json::to_string(meta).unwrap();
    let nonce = [9; 24];
    let payload = Payload { msg: value, aad: meta.as_bytes() };
    let value = XChaCha20Poly1305::new(master.into()).encrypt(&XNonce::from(nonce), payload).unwrap();
    Sealed { meta, nonce: nonce.to_vec(), value }
}

/// One of the two logs: `deeds`, or `egress` whose files' names begin so.
pub struct Audit {
    key: SigningKey,
    series: &'static str,
    lines: Vec<String>,
    prev: String,
    head: String,
}

impl Audit {
    pub fn new(key: SigningKey, series: &'static str) -> Self {
        Self { key, series, lines: Vec::new(), prev: "0".repeat(64), head: String::new() }
    }

    /// `event` are the fields of an entry from `kind` on.
    pub fn line(&mut self, time: &str, event: &str) {
        let (seq, prev) = (self.lines.len(), &self.prev);
        let line = format!(r#"{{"seq":{seq},"time":"{time}",{event},"prev":"{prev}"}}"#);
        self.prev = hex(&Sha256::digest(&line));
        self.lines.push(line);
    }

    pub fn checkpoint(&mut self, time: &str) {
        let (series, seq, prev) = (self.series, self.lines.len(), self.prev.clone());
        let message = format!("berth audit 2\n{series}\n{seq}\n{prev}\n1\n{time}\n");
        let signature = sign(&self.key, message.as_bytes());
        self.line(time, &format!(r#""kind":"checkpoint","oldest":1,"signature":"{signature}""#));
        let hash = self.prev.clone();
        let message = format!("berth audit head 1\n{series}\n{seq}\n{hash}\n{time}\n");
        let signature = sign(&self.key, message.as_bytes());
        self.head = format!(r#"{{"seq":{seq},"hash":"{hash}","time":"{time}","signature":"{signature}"}}"#);
    }

    /// The first file and the head.
    pub fn files(&self) -> [(String, String); 2] {
        let prefix = if self.series == "egress" { "egress-" } else { "" };
        let log = format!("{}\n", self.lines.join("\n"));
        [(format!("{prefix}0000000001.jsonl"), log), (format!("{prefix}head"), self.head.clone())]
    }
}

fn sign(key: &SigningKey, message: &[u8]) -> String {
    hex(&key.sign(message).to_bytes())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
