//! The directory of images: one builder per image, and nothing half-made in it.
//!
//! ```text
//! IMAGES/debian/         what machines start from
//! IMAGES/.debian.lock    held while it is built
//! IMAGES/.debian.log     what the last build's tools said
//! IMAGES/.debian.work/   where it is built; nobody's, when the lock is free
//! ```

use super::{ImageError, progress::Progress};
use berth_sys::private::{PASSABLE, make_directory};
use rustix::fs::{FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// Images have no secrets: every machine has its disk from one, and `image ls` is for all.
const LISTED: u32 = 0o755;

/// The right to build one image.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    name: String,
    _lock: File,
}

impl Store {
    pub fn lock(directory: &Path, name: &str, progress: &Progress) -> Result<Self, ImageError> {
        let parent = directory.parent().unwrap_or(directory);
        make_directory(parent, PASSABLE)
            .and_then(|()| make_directory(directory, LISTED))
            .map_err(|source| ImageError::write(directory, source))?;
        let path = directory.join(format!(".{name}.lock"));
        let failed = |source: io::Error| ImageError::write(&path, source);
        let lock = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        // The tools inherit it: a builder that is killed leaves the lock to what it started.
        fcntl_setfd(&lock, FdFlags::empty()).map_err(|error| failed(error.into()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                progress.step("waiting for another build of it");
                flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
            }
            other => other.map_err(|error| failed(error.into()))?,
        }
        Ok(Self { directory: directory.to_owned(), name: name.to_owned(), _lock: lock })
    }

    pub fn image(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    pub fn log(&self) -> PathBuf {
        self.directory.join(format!(".{}.log", self.name))
    }

    /// An empty place to build in, and an empty log.
    pub fn work(&self) -> Result<Work, ImageError> {
        let path = self.directory.join(format!(".{}.work", self.name));
        for stale in [&path, &self.log()] {
            remove(stale).map_err(|source| ImageError::write(stale, source))?;
        }
        fs::create_dir(&path).map_err(|source| ImageError::write(&path, source))?;
        Ok(Work(path))
    }

    /// Puts a finished image into its place in one step. A machine that starts
    /// meanwhile sees the old or the new one, never a part of each.
    pub fn publish(&self, new: &Path) -> Result<(), ImageError> {
        let image = self.image();
        let failed = |source: io::Error| ImageError::write(&image, source);
        for entry in fs::read_dir(new).map_err(failed)? {
            File::open(entry.map_err(failed)?.path()).and_then(|file| file.sync_all()).map_err(failed)?;
        }
        let cwd = rustix::fs::CWD;
        match renameat_with(cwd, new, cwd, &image, RenameFlags::EXCHANGE) {
            Err(Errno::NOENT) => fs::rename(new, &image).map_err(failed)?,
            other => other.map_err(|error| failed(error.into()))?,
        }
        File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(failed)
    }
}

/// Gone when it is dropped.
#[derive(Debug)]
pub struct Work(PathBuf);

impl Work {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            say!("berth: {} stays behind ({error}): the next build removes it", self.0.display());
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("berth-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_finished_image_replaces_the_old_one_and_nothing_else_stays() {
        let directory = scratch("publish");
        let store = Store::lock(&directory, "debian", &Progress::new("test")).unwrap();
        for text in ["old", "new"] {
            let work = store.work().unwrap();
            let new = work.path().join("image");
            fs::create_dir(&new).unwrap();
            fs::write(new.join("disk"), text).unwrap();
            store.publish(&new).unwrap();
        }
        assert_eq!(fs::read_to_string(store.image().join("disk")).unwrap(), "new");
        assert!(!directory.join(".debian.work").exists());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_a_killed_build_left_is_cleared() {
        let directory = scratch("stale");
        fs::create_dir_all(directory.join(".debian.work/root/etc")).unwrap();
        let store = Store::lock(&directory, "debian", &Progress::new("test")).unwrap();
        let work = store.work().unwrap();
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
        drop(work);
        fs::remove_dir_all(directory).unwrap();
    }
}
