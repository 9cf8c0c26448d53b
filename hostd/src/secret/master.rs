//! The master key: from systemd, from the environment, or from a file.

use crate::{
    error::{FileContext, Result},
    keyfile::{self, Key},
};
use std::{env, fmt, fs, io, path::Path};
use zeroize::Zeroizing;

/// A credential of systemd, `LoadCredentialEncrypted=berth-master-key:…`, and a
/// variable of 64 hexadecimal digits.
const CURRENT: [&str; 2] = ["berth-master-key", "BERTH_MASTER_KEY"];
/// What was given before, for what is still sealed under it.
const OLD: [&str; 2] = ["berth-master-key-old", "BERTH_MASTER_KEY_OLD"];

/// What secrets are sealed under.
pub struct MasterKey {
    pub(super) current: Key,
    /// What some may still be sealed under.
    pub(super) old: Option<Key>,
    /// Not from a file of ours.
    pub(super) given: bool,
}

impl MasterKey {
    /// From systemd's credentials, else from the environment.
    pub fn take_given() -> Result<Option<Self>> {
        let (current, old) = (take(CURRENT)?, take(OLD)?);
        Ok(current.map(|current| Self { current, old, given: true }))
    }

    /// The 32 bytes themselves, or their digits.
    fn read(bytes: &[u8]) -> io::Result<Key> {
        if bytes.len() == 32 {
            return keyfile::parse(bytes);
        }
        let digits = std::str::from_utf8(bytes).unwrap_or_default().trim();
        let pairs = digits.as_bytes().chunks(2);
        let parsed = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        let bytes = parsed.collect::<Option<Vec<u8>>>().map(Zeroizing::new);
        let bytes =
            bytes.ok_or_else(|| io::Error::other("a master key is 32 bytes, or 64 hexadecimal digits"))?;
        keyfile::parse(&bytes)
    }
}

/// The environment does not have it afterwards: whatever is started later must not
/// inherit it.
#[allow(unsafe_code)]
fn take([credential, variable]: [&'static str; 2]) -> Result<Option<Key>> {
    let digits = env::var(variable).ok().map(Zeroizing::new);
    if digits.is_some() {
        // SAFETY: called first thing in `main`, when there is one thread.
        unsafe { env::remove_var(variable) };
    }
    if let Some(directory) = env::var_os("CREDENTIALS_DIRECTORY") {
        let path = Path::new(&directory).join(credential);
        match fs::read(&path) {
            Ok(bytes) => return MasterKey::read(&Zeroizing::new(bytes)).file("use", &path).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).file("read", &path),
        }
    }
    digits.map(|digits| MasterKey::read(digits.as_bytes()).file("use", variable)).transpose()
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_bytes_or_digits() {
        assert_eq!(*MasterKey::read(&[7; 32]).unwrap(), [7; 32]);
        assert_eq!(*MasterKey::read(format!("{}\n", "07".repeat(32)).as_bytes()).unwrap(), [7; 32]);
        for bad in ["", "07", &"0x".repeat(32), &"07".repeat(33)] {
            assert!(MasterKey::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
