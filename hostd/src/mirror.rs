//! Mirrors: signed copies, in files, of what the store keeps. A store that is lost is
//! rebuilt from them, and so is a part of one: every start merges them.
//!
//! So that merging never brings back what was removed, a mirror has at no time more than
//! what was acknowledged: what is added goes to the store first, what is removed goes from
//! the mirror first. What is in both is as the store says.
//!
//! What is signed is the text that is in the file, never a text that is made again from
//! what was read: a mirror verifies whatever fields a later version adds. Every kind is
//! signed under its own name, so that none can be taken for another.
//!
//! Up to the version that began to sign, mirrors were bare. Those are believed until the
//! first start of a version that signs has ended, which signs all of them and then makes
//! `mirrors.signed`; from then on what is not signed is not believed.

use crate::{
    error::{Error, FileContext, Result},
    keyfile,
    lost::Lost,
    storage::{replace, sync_directory},
};
use berth_types::LostKind;
use ed25519_dalek::{Signature, Signer as _, SigningKey};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// What a mirror is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Machine,
    User,
    Policies,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Untrusted {
    #[error("it does not decode")]
    Damaged,
    #[error("it is not signed by this installation")]
    Unsigned,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signed {
    text: String,
    signature: String,
}

/// Signs mirrors and checks them. Cheap to clone.
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

    pub fn sign<T: Serialize>(&self, kind: Kind, value: &T) -> Result<Vec<u8>> {
        let failed = |source| Error::Record { what: kind.what(), source };
        let text = serde_json::to_string(value).map_err(failed)?;
        let signature = hex(&self.0.key.sign(&kind.signed(&text)).to_bytes());
        serde_json::to_vec_pretty(&Signed { text, signature }).map_err(failed)
    }

    pub fn read<T: DeserializeOwned>(&self, kind: Kind, bytes: &[u8]) -> Result<T, Untrusted> {
        let Ok(Signed { text, signature }) = serde_json::from_slice(bytes) else {
            let bare = serde_json::from_slice(bytes).map_err(|_| Untrusted::Damaged)?;
            let believes = self.0.believes_bare.load(Ordering::Relaxed);
            return if believes { Ok(bare) } else { Err(Untrusted::Unsigned) };
        };
        let signature = unhex(&signature).and_then(|bytes| Signature::from_slice(&bytes).ok());
        let signature = signature.ok_or(Untrusted::Damaged)?;
        self.0.key.verify(&kind.signed(&text), &signature).map_err(|_| Untrusted::Unsigned)?;
        serde_json::from_str(&text).map_err(|_| Untrusted::Damaged)
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
    const fn what(self) -> &'static str {
        match self {
            Self::Machine => "a machine",
            Self::User => "a user",
            Self::Policies => "policies",
        }
    }

    /// What the signature is over.
    fn signed(self, text: &str) -> Vec<u8> {
        [b"berth mirror 1: ", self.what().as_bytes(), b"\0", text.as_bytes()].concat()
    }
}

/// Reads every mirror in a directory. What cannot be believed is moved aside.
pub fn load<T>(
    directory: &Path,
    lost: &Lost,
    read: impl Fn(&[u8]) -> Result<T, Untrusted>,
) -> Result<Vec<(String, T)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).file("list", directory)? {
        let path = entry.file("list", directory)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let Some(stem) = name.strip_suffix(".json") else { continue };
        let value = std::fs::read(&path)
            .map_err(|error| error.to_string())
            .and_then(|bytes| read(&bytes).map_err(|untrusted| untrusted.to_string()));
        match value {
            Ok(value) => found.push((stem.to_owned(), value)),
            Err(reason) => {
                lost.put(LostKind::Mirror, &name, &path, &reason)?;
            }
        }
    }
    Ok(found)
}

/// Writes a mirror, durable when this returns; nothing if the file says so already.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    replace(path, bytes)?;
    path.parent().map_or(Ok(()), sync_directory)
}

/// Removes a mirror for good; fine if it is gone.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).file("remove", path),
        _ => {}
    }
    path.parent().map_or(Ok(()), sync_directory)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Scratch;

    #[test]
    fn what_was_signed_is_believed_and_nothing_else_is() {
        let scratch = Scratch::new();
        let signer = Signer::open(scratch.path()).unwrap();
        let value = vec!["ann".to_owned(), "a \"quote\"".to_owned(), String::new()];
        let bytes = signer.sign(Kind::User, &value).unwrap();
        let read = |signer: &Signer, kind, bytes: &[u8]| signer.read::<Vec<String>>(kind, bytes);
        assert_eq!(read(&signer, Kind::User, &bytes), Ok(value.clone()));
        assert_eq!(read(&signer, Kind::Policies, &bytes), Err(Untrusted::Unsigned), "of another kind");
        let other = String::from_utf8(bytes.clone()).unwrap().replace("ann", "eve");
        assert_eq!(read(&signer, Kind::User, other.as_bytes()), Err(Untrusted::Unsigned), "altered");
        for end in 0..bytes.len() {
            assert_eq!(read(&signer, Kind::User, &bytes[..end]), Err(Untrusted::Damaged), "cut off at {end}");
        }
        // Bare ones until every mirror has been signed once, and never after.
        let bare = serde_json::to_vec(&value).unwrap();
        assert_eq!(read(&signer, Kind::User, &bare), Ok(value.clone()));
        signer.all_signed().unwrap();
        assert_eq!(read(&signer, Kind::User, &bare), Err(Untrusted::Unsigned));
        let next = Signer::open(scratch.path()).unwrap();
        assert_eq!(read(&next, Kind::User, &bare), Err(Untrusted::Unsigned), "after a restart");
        assert_eq!(read(&next, Kind::User, &bytes), Ok(value));
    }

    /// A field that a later version adds must not make older mirrors unreadable.
    #[test]
    fn a_mirror_of_a_record_with_fewer_or_more_fields_is_believed() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Now {
            name: String,
            #[serde(default)]
            added: u32,
        }
        let scratch = Scratch::new();
        let signer = Signer::open(scratch.path()).unwrap();
        let older = signer.sign(Kind::User, &serde_json::json!({"name": "ann"})).unwrap();
        let newer = signer.sign(Kind::User, &serde_json::json!({"later": 7, "name": "ann"})).unwrap();
        for bytes in [older, newer] {
            assert_eq!(signer.read(Kind::User, &bytes), Ok(Now { name: "ann".into(), added: 0 }));
        }
    }
}
