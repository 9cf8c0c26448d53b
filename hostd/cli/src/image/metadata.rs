//! `image.json`: what an image is and what it was made from.

use super::{ImageError, recipe};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

pub const FILE: &str = "image.json";
/// What a machine is started from.
pub const PARTS: &[&str] = &["vmlinux", "initrd", "disk"];
/// The drivers' half of `initrd`, kept so that guest-init can be exchanged.
pub const MODULES: &str = "modules.cpio";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    pub generation: u16,
    pub name: String,
    pub created: Timestamp,
    pub suite: String,
    pub kernel: String,
    /// The fingerprint of what the root filesystem was made from.
    pub recipe: String,
    /// The SHA-256 of the guest-init in `initrd`.
    pub guest_init: String,
}

impl Metadata {
    pub fn read(image: &Path) -> Result<Self, ImageError> {
        let path = image.join(FILE);
        let bytes = fs::read(&path).map_err(|source| ImageError::read(&path, source))?;
        serde_json::from_slice(&bytes).map_err(|source| ImageError::Metadata { path, source })
    }

    pub fn write(&self, image: &Path) -> Result<(), ImageError> {
        let path = image.join(FILE);
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|source| ImageError::Metadata { path: path.clone(), source })?;
        bytes.push(b'\n');
        replace(&path, &bytes)
    }

    /// True if the image's files are there and its root filesystem is what
    /// would be made now.
    pub fn is_current(&self, image: &Path) -> bool {
        self.generation == recipe::GENERATION
            && self.recipe == recipe::fingerprint()
            && PARTS.iter().chain(&[MODULES]).all(|part| image.join(part).is_file())
    }
}

/// Exchanges a file's content at once, so that a reader sees the old or the new.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), ImageError> {
    let new = path.with_extension("new");
    let written = fs::File::create(&new).and_then(|mut file| {
        std::io::Write::write_all(&mut file, content)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&new, path)).map_err(|source| ImageError::write(path, source))
}
