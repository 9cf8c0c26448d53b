//! Sealing: XChaCha20-Poly1305 with a random nonce. What the value belongs to,
//! its owner, name, hosts and forms, is authenticated with it: a record that was
//! pointed elsewhere does not open.

use super::{MasterKey, Meta};
use crate::{
    error::{Error, Result},
    format::{self, Unreadable},
    keyfile::Key,
};
use berth_types::egress::SecretValue;
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use serde::{Deserialize, Serialize};

/// A secret at rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// [`Meta`] as JSON, with its version: kept as the text that was authenticated.
    pub meta: String,
    pub(super) nonce: Vec<u8>,
    pub(super) value: Vec<u8>,
}

impl Sealed {
    pub fn seal(key: &Key, meta: &Meta, value: &SecretValue) -> Result<Self> {
        let meta = format::encode("a secret", meta)?;
        let mut nonce = [0; 24];
        getrandom::fill(&mut nonce).map_err(|_| Error::Secret("the kernel gives no randomness"))?;
        let payload = Payload { msg: value.expose(), aad: meta.as_bytes() };
        let value = cipher(key).encrypt(&XNonce::from(nonce), payload);
        let value = value.map_err(|_| Error::Secret("a value cannot be sealed"))?;
        Ok(Self { meta, nonce: nonce.to_vec(), value })
    }

    pub fn meta(&self) -> Result<Meta> {
        self.read_meta().map_err(|source| Error::Unreadable { what: "a secret", source })
    }

    pub(super) fn read_meta(&self) -> Result<Meta, Unreadable> {
        format::decode(self.meta.as_bytes())
    }

    /// `None`: it was sealed under another key, or tampered with.
    pub fn open(&self, key: &Key) -> Option<SecretValue> {
        let nonce = <[u8; 24]>::try_from(self.nonce.as_slice()).ok()?;
        let payload = Payload { msg: &self.value, aad: self.meta.as_bytes() };
        SecretValue::new(cipher(key).decrypt(&XNonce::from(nonce), payload).ok()?).ok()
    }
}

impl Sealed {
    pub fn open_with(&self, key: &MasterKey) -> Option<SecretValue> {
        self.open(&key.current).or_else(|| key.old.as_ref().and_then(|old| self.open(old)))
    }
}

fn cipher(key: &Key) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new((&**key).into())
}
