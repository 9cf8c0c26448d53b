//! A directory that only the user may enter, for the socket of an ssh agent.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use crate::error::{Context, Error, Result};

const ALPHABET: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZabcdefgh";

/// Gone, with what is in it, when the forward ends.
#[derive(Debug)]
pub struct AgentDirectory(PathBuf);

impl AgentDirectory {
    pub fn create() -> Result<Self> {
        // Someone else's directory of that name is found out, not used.
        for _ in 0..16 {
            let path = Path::new("/tmp").join(format!("ssh-{}", suffix()?));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).during("make", path.display()),
            }
        }
        Err(Error::new("make", "a directory for the agent", io::ErrorKind::AlreadyExists.into()))
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join(format!("agent.{}", std::process::id()))
    }
}

impl Drop for AgentDirectory {
    fn drop(&mut self) {
        // The user may have cleaned up /tmp before us.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn suffix() -> Result<String> {
    let mut bytes = [0; 10];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).during("draw", "a name")?;
    let letter = |byte: &u8| ALPHABET.get(usize::from(byte % 32)).map_or('A', |&b| char::from(b));
    Ok(bytes.iter().map(letter).collect())
}
