//! Host keys: made once, kept for good, readable by root alone. The gateway
//! reads them before it gives up root, so a gateway that is taken over can use
//! them while it runs, but cannot put others in their place.

use getrandom::SysRng;
use nix::unistd::{Gid, Uid, chown, geteuid};
use russh::keys::{
    Algorithm, PrivateKey,
    ssh_key::{LineEnding, rand_core::UnwrapErr},
};
use std::{
    fs::{self, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

const KEYS: &[(&str, Algorithm)] = &[("host_ed25519", Algorithm::Ed25519)];
/// A key of earlier releases, on a curve of NIST's: kept, and not offered.
const RETIRED: &str = "host_ecdsa";

#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    #[error("cannot {what} {}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot use the host key {}", path.display())]
    Key {
        path: PathBuf,
        #[source]
        source: russh::keys::ssh_key::Error,
    },
}

/// Reads the keys in `directory`; makes those that are missing.
pub fn load_or_make(directory: &Path) -> Result<Vec<PrivateKey>, HostKeyError> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source| HostKeyError::Io { what, path, source }
    };
    fs::create_dir_all(directory).map_err(failed("make", directory))?;
    fs::set_permissions(directory, Permissions::from_mode(0o700)).map_err(failed("protect", directory))?;
    take_back(directory).map_err(failed("take back", directory))?;
    if directory.join(RETIRED).exists() {
        tracing::info!(key = RETIRED, "a host key of an earlier release is not offered any more");
    }
    let mut keys = Vec::new();
    for (name, algorithm) in KEYS {
        let path = directory.join(name);
        let bad = |source| HostKeyError::Key { path: path.clone(), source };
        let key = match fs::read_to_string(&path) {
            Ok(text) => {
                take_back(&path).map_err(failed("take back", &path))?;
                PrivateKey::from_openssh(text).map_err(bad)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = PrivateKey::random(&mut UnwrapErr(SysRng), algorithm.clone()).map_err(bad)?;
                let text = key.to_openssh(LineEnding::LF).map_err(bad)?;
                write_new(&path, text.as_bytes()).map_err(failed("write", &path))?;
                tracing::info!(path = %path.display(), "made a host key");
                key
            }
            Err(error) => return Err(failed("read", &path)(error)),
        };
        keys.push(key);
    }
    Ok(keys)
}

/// Earlier releases gave the keys to the gateway's user.
fn take_back(path: &Path) -> io::Result<()> {
    if geteuid().is_root() {
        chown(path, Some(Uid::from_raw(0)), Some(Gid::from_raw(0)))?;
    }
    Ok(())
}

/// Whole or not at all: a half-written key would lock everyone out.
fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    let _ = fs::remove_file(&part);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    match path.parent() {
        Some(directory) => fs::File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_the_same_and_private() {
        let directory = std::env::temp_dir().join(format!("berth-hostkeys-{}", std::process::id()));
        let first = load_or_make(&directory).unwrap();
        let second = load_or_make(&directory).unwrap();
        assert_eq!(first.len(), KEYS.len());
        for (one, two) in first.iter().zip(&second) {
            assert_eq!(one.public_key(), two.public_key());
        }
        for (name, _) in KEYS {
            let key = fs::metadata(directory.join(name)).unwrap();
            assert_eq!(key.permissions().mode() & 0o777, 0o600);
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
