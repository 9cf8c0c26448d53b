//! Mirrors: signed copies, in files, of what the store keeps. A store that is lost is
//! rebuilt from them, and so is a part of one: every start merges them.
//!
//! So that merging never brings back what was removed, a mirror has at no time more than
//! what was acknowledged: what is added goes to the store first, what is removed goes from
//! the mirror first. What is in both is as the store says.
//!
//! How they are signed, and which versions are read, is in `format`.

use crate::{
    error::{FileContext, Result},
    format::Unreadable,
    lost::Lost,
    storage::{replace, sync_directory},
};
use berth_types::LostKind;
use std::path::Path;

/// Reads every mirror in a directory. What cannot be believed is moved aside.
pub fn load<T>(
    directory: &Path,
    lost: &Lost,
    read: impl Fn(&[u8]) -> Result<T, Unreadable>,
) -> Result<Vec<(String, T)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).file("list", directory)? {
        let path = entry.file("list", directory)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let Some(stem) = name.strip_suffix(".json") else { continue };
        let value = std::fs::read(&path)
            .map_err(|error| error.to_string())
            .and_then(|bytes| read(&bytes).map_err(|unreadable| unreadable.to_string()));
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
