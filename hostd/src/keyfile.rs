//! Keys in files: made on the first start, readable by root alone.

use crate::error::{FileContext, Result};
use berth_sys::beneath::sync_parent;
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};
use zeroize::Zeroizing;

pub type Key = Zeroizing<[u8; 32]>;

/// The key in that file. Where there is none, it is made.
pub fn key(path: &Path) -> Result<Key> {
    let bytes = load_or_make(path, || {
        let mut bytes = Zeroizing::new(vec![0; 32]);
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(bytes)
    })?;
    parse(&bytes).file("use as a key", path)
}

pub fn parse(bytes: &[u8]) -> io::Result<Key> {
    let key: [u8; 32] = bytes.try_into().map_err(|_| io::Error::other("a key has 32 bytes"))?;
    Ok(Zeroizing::new(key))
}

/// What is in that file, or what is made for it. It has its name only once it
/// is whole and synced: a crash leaves no half a key.
pub fn load_or_make(
    path: &Path,
    make: impl FnOnce() -> io::Result<Zeroizing<Vec<u8>>>,
) -> Result<Zeroizing<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => {
            let bytes = Zeroizing::new(bytes);
            let mode = fs::metadata(path).file("read", path)?.permissions().mode();
            if mode & 0o077 != 0 {
                let open = io::Error::other("others can read it: chmod 600 it");
                return Err(open).file("use", path);
            }
            Ok(bytes)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let bytes = make().file("make", path)?;
            let fresh = path.with_extension("new");
            let write = || -> io::Result<()> {
                let mut options = OpenOptions::new();
                let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
                file.write_all(&bytes)?;
                file.sync_all()?;
                fs::rename(&fresh, path)?;
                sync_parent(path)
            };
            write().file("write", path)?;
            Ok(bytes)
        }
        Err(error) => Err(error).file("read", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_for_root_alone() {
        let path = std::env::temp_dir().join(format!("berth-key-{}", berth_types::UserId::random()));
        let made = key(&path).unwrap();
        assert_eq!(*key(&path).unwrap(), *made);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(key(&path).is_err(), "others could read it");
        fs::write(&path, "short").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(key(&path).is_err(), "it has another length");
        fs::remove_file(&path).unwrap();
    }
}
