//! The envelope of signed files: saved states' manifests and the mirrors of the store.
//!
//! ```json
//! {
//!   "format_version": 2,
//!   "signed": {"format_version":2,"id":"…"},
//!   "signature": "ed25519, in hexadecimal"
//! }
//! ```
//!
//! The signature is over the bytes of `signed` as they stand in the file, under the name of
//! the file's kind, so that none can be taken for another. Nothing is serialised again to
//! verify it: a file verifies whatever fields other builds add. `jq .signed FILE` shows the
//! record; a file that was formatted anew does not verify.
//!
//! Up to commit 643521d mirrors were bare. Those are believed until the first start of a
//! build that signs has ended, which signs all of them and then makes `mirrors.signed`; from
//! then on what is not signed is not believed.

use super::{FORMAT_VERSION, Unreadable, damaged, decode, encode, from_fields, known_version, parse, v1};
use crate::{
    error::{Error, FileContext, Result},
    keyfile,
    storage::replace,
};
use ed25519_dalek::{Signature, Signer as _, SigningKey};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// What a signed file is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Machine,
    User,
    Policies,
    Snapshot,
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    format_version: u64,
    #[serde(borrow)]
    signed: &'a RawValue,
    signature: String,
}

/// Signs files and checks them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Signer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    key: SigningKey,
    /// There when every mirror is signed.
    marker: PathBuf,
    believes_bare: AtomicBool,
}

impl Signer {
    /// The installation's, in its data directory.
    pub fn open(data: &Path) -> Result<Self> {
        let key = SigningKey::from_bytes(&*keyfile::key(&data.join("signing.key"))?);
        let marker = data.join("mirrors.signed");
        let believes_bare = AtomicBool::new(!marker.try_exists().file("look for", &marker)?);
        Ok(Self(Arc::new(Inner { key, marker, believes_bare })))
    }

    pub fn sign<T: Serialize>(&self, kind: Kind, record: &T) -> Result<Vec<u8>> {
        let failed = |source| Error::Record { what: kind.what(), source };
        let signed = RawValue::from_string(encode(kind.what(), record)?).map_err(failed)?;
        let signature = hex(&self.0.key.sign(&kind.message(signed.get())).to_bytes());
        let envelope = Envelope { format_version: FORMAT_VERSION, signed: &signed, signature };
        serde_json::to_vec_pretty(&envelope).map_err(failed)
    }

    /// What is in a file of any version up to the current one, if it is signed.
    pub fn read<T: DeserializeOwned>(&self, kind: Kind, bytes: &[u8]) -> Result<T, Unreadable> {
        // Before the signature: a newer version may sign in another way.
        if known_version(&parse(bytes)?)? <= 1 {
            let believes_bare = self.0.believes_bare.load(Ordering::Relaxed);
            return from_fields(v1::read(&self.0.key, kind, bytes, believes_bare)?);
        }
        let Envelope { signed, signature, .. } = serde_json::from_slice(bytes).map_err(damaged)?;
        verify(&self.0.key, &kind.message(signed.get()), &signature)?;
        decode(signed.get().as_bytes())
    }

    /// Every mirror is signed now: bare ones are not believed any more.
    pub fn all_signed(&self) -> Result<()> {
        if self.0.believes_bare.swap(false, Ordering::Relaxed) {
            replace(&self.0.marker, b"every mirror of this installation is signed\n")?;
        }
        Ok(())
    }
}

impl Kind {
    /// Part of what is signed, so none of these ever changes.
    const fn what(self) -> &'static str {
        match self {
            Self::Machine => "a machine",
            Self::User => "a user",
            Self::Policies => "policies",
            Self::Snapshot => "a snapshot",
        }
    }

    /// What the signature is over. Version 1 begins in other ways.
    fn message(self, text: &str) -> Vec<u8> {
        [b"berth file 2: ", self.what().as_bytes(), b"\0", text.as_bytes()].concat()
    }
}

/// What a file says, for people to judge: nothing of it is checked.
pub fn unverified<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Option<T> {
    let mut file = parse(bytes).ok()?;
    let record = match known_version(&file).ok()? {
        0 | 1 => v1::unverified(kind, file),
        _ => file.get_mut("signed").map(Value::take)?,
    };
    from_fields(record).ok()
}

pub(super) fn verify(key: &SigningKey, message: &[u8], signature: &str) -> Result<(), Unreadable> {
    let signature = unhex(signature).and_then(|bytes| Signature::from_slice(&bytes).ok());
    let signature = signature.ok_or(Unreadable::Damaged)?;
    key.verify(message, &signature).map_err(|_| Unreadable::Unsigned)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
