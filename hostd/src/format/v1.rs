//! Version 1, as commits up to c6295b3 wrote it. FROZEN: nothing here is ever changed, for
//! data that was written then has to be read for as long as berth reads version 1.
//!
//! - A manifest of a saved state is `{"generation": {…}, "signature"}`. The signature is over
//!   the inner object serialised again without spaces, so its fields and their order count.
//! - A mirror of the store is `{"text", "signature"}`: over the text, under its kind's name.
//!   Older ones are bare: the record itself.

use super::{
    Unreadable, damaged,
    signed::{Kind, verify},
};
use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Serialize, Deserialize)]
struct Manifest {
    generation: Generation,
    signature: String,
}

#[derive(Serialize, Deserialize)]
struct Generation {
    generation: u16,
    id: String,
    why: Why,
    machine: Option<String>,
    owner: Option<String>,
    name: String,
    created: String,
    image: String,
    cpus: u32,
    memory: u64,
    disk: u64,
    driver: String,
    driver_version: String,
    state_size: u64,
    state_sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
    /// From commit b041e1f on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    guest: Option<u16>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Why {
    Sleep,
    Restore,
    Snapshot(String),
    Fork,
    Template { version: String },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signed {
    text: String,
    signature: String,
}

/// The record in a file of version 1, in the form of version 2, if it is signed.
pub fn read(key: &SigningKey, kind: Kind, bytes: &[u8], believes_bare: bool) -> Result<Value, Unreadable> {
    let record = match mirror_name(kind) {
        None => manifest(key, bytes)?,
        Some(name) => match serde_json::from_slice(bytes) {
            Ok(Signed { text, signature }) => {
                let message = [b"berth mirror 1: ", name.as_bytes(), b"\0", text.as_bytes()].concat();
                verify(key, &message, &signature)?;
                serde_json::from_str(&text).map_err(damaged)?
            }
            Err(_) if believes_bare => serde_json::from_slice(bytes).map_err(damaged)?,
            Err(_) => return Err(Unreadable::Unsigned),
        },
    };
    Ok(to_version_2(kind, record))
}

fn manifest(key: &SigningKey, bytes: &[u8]) -> Result<Value, Unreadable> {
    let Manifest { generation, signature } = serde_json::from_slice(bytes).map_err(damaged)?;
    let signed = serde_json::to_vec(&generation).map_err(damaged)?;
    verify(key, &signed, &signature)?;
    serde_json::to_value(generation).map_err(damaged)
}

/// What such a file says, unchecked.
pub fn unverified(kind: Kind, mut file: Value) -> Value {
    let record = if let Some(manifest) = file.get_mut("generation").filter(|inner| inner.is_object()) {
        manifest.take()
    } else if let Some(Ok(record)) = file.get("text").and_then(Value::as_str).map(serde_json::from_str) {
        record
    } else {
        file
    };
    to_version_2(kind, record)
}

/// Under which a mirror was signed; manifests were signed under none.
const fn mirror_name(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Machine => Some("a machine"),
        Kind::User => Some("a user"),
        Kind::Policies => Some("policies"),
        Kind::Snapshot => None,
    }
}

/// A user was in a file with a number of its own; policies were a list.
fn to_version_2(kind: Kind, mut record: Value) -> Value {
    match kind {
        Kind::User => {
            if let Some(user) = record.get_mut("user").and_then(Value::as_object_mut) {
                user.remove("generation");
            }
        }
        Kind::Policies if record.is_array() => return serde_json::json!({ "policies": record }),
        Kind::Policies | Kind::Machine | Kind::Snapshot => {}
    }
    record
}
