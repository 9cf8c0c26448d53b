//! The master key: from systemd, from the environment, or from a file.

use crate::{
    error::{FileContext, Result},
    keyfile::{self, Key},
};
use std::{env, fmt, fs, io, path::Path};
use zeroize::Zeroizing;

/// A credential of systemd: `LoadCredentialEncrypted=berth-master-key:…`.
const CREDENTIAL: &str = "berth-master-key";
/// 64 hexadecimal digits.
const VARIABLE: &str = "BERTH_MASTER_KEY";

/// What secrets are sealed under.
pub struct MasterKey(pub(super) Key);

impl MasterKey {
    /// From systemd's credentials, else from the environment, which does not
    /// have it afterwards: whatever is started later must not inherit it.
    #[allow(unsafe_code)]
    pub fn take_given() -> Result<Option<Self>> {
        let digits = env::var(VARIABLE).ok().map(Zeroizing::new);
        if digits.is_some() {
            // SAFETY: called first thing in `main`, when there is one thread.
            unsafe { env::remove_var(VARIABLE) };
        }
        if let Some(directory) = env::var_os("CREDENTIALS_DIRECTORY") {
            let path = Path::new(&directory).join(CREDENTIAL);
            match fs::read(&path) {
                Ok(bytes) => return Self::read(&Zeroizing::new(bytes)).file("use", &path).map(Some),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).file("read", &path),
            }
        }
        digits.map(|digits| Self::read(digits.as_bytes()).file("use", VARIABLE)).transpose()
    }

    /// Made on the first start.
    pub fn from_file(path: &Path) -> Result<Self> {
        keyfile::key(path).map(Self)
    }

    /// The 32 bytes themselves, or their digits.
    fn read(bytes: &[u8]) -> io::Result<Self> {
        if bytes.len() == 32 {
            return keyfile::parse(bytes).map(Self);
        }
        let digits = std::str::from_utf8(bytes).unwrap_or_default().trim();
        let pairs = digits.as_bytes().chunks(2);
        let parsed = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        let bytes = parsed.collect::<Option<Vec<u8>>>().map(Zeroizing::new);
        let bytes =
            bytes.ok_or_else(|| io::Error::other("a master key is 32 bytes, or 64 hexadecimal digits"))?;
        keyfile::parse(&bytes).map(Self)
    }
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
        assert_eq!(*MasterKey::read(&[7; 32]).unwrap().0, [7; 32]);
        assert_eq!(*MasterKey::read(format!("{}\n", "07".repeat(32)).as_bytes()).unwrap().0, [7; 32]);
        for bad in ["", "07", &"0x".repeat(32), &"07".repeat(33)] {
            assert!(MasterKey::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
