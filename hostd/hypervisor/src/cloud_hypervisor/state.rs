//! Device state between our one file and the directories that Cloud Hypervisor
//! reads and writes: `state.json` for the devices, `config.json` for what they
//! are, and `memory-ranges` for RAM that it has to copy — which it never may.

use super::config::Machine;
use crate::{
    Error,
    files::{self, STATE, UNFINISHED},
};
use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Both in the machine's directory, and there only meanwhile.
pub(super) const SAVING: &str = "saving";
pub(super) const RESTORING: &str = "restoring";

const DEVICES: &str = "state.json";
const DESCRIPTION: &str = "config.json";
const MEMORY: &str = "memory-ranges";
/// Some tens of kilobytes for a vCPU; far more is no device state.
const STATE_MAX: u64 = 16 * 1024 * 1024;

/// A save under way.
pub(super) struct Saving {
    directory: PathBuf,
    place: OwnedFd,
}

impl Saving {
    /// Makes room for it. The file that RAM would be copied to is there already:
    /// a hypervisor that wants to copy fails at once, and not after minutes.
    pub(super) fn begin(directory: &Path, uid: u32) -> Result<Self, Error> {
        let begin = || {
            let place = make(directory, SAVING, uid)?;
            create(&place, MEMORY)?;
            Ok(Self { directory: directory.to_owned(), place })
        };
        begin().map_err(|source| Error::Io { operation: "saving device state", source })
    }

    /// Takes over what was written. Renamed when it is whole; putting it on the
    /// disk below is for whoever wants it to last.
    pub(super) fn finish(self) -> Result<(), Error> {
        let finish = || {
            let devices = read(&self.place, DEVICES)?;
            let mut state = files::create(&self.directory, UNFINISHED)?;
            state.write_all(&devices)?;
            std::fs::rename(self.directory.join(UNFINISHED), self.directory.join(STATE))
        };
        finish().map_err(|source| Error::Io { operation: "saving device state", source })
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        clear(&self.directory, SAVING);
    }
}

/// A restore under way.
pub(super) struct Restoring(PathBuf);

impl Restoring {
    pub(super) fn begin(directory: &Path, uid: u32, machine: &Machine<'_>) -> Result<Self, Error> {
        let begin = || {
            let mut devices = Vec::new();
            limited(files::read(directory, STATE)?, &mut devices)?;
            let place = make(directory, RESTORING, uid)?;
            let restoring = Self(directory.to_owned());
            create(&place, DEVICES)?.write_all(&devices)?;
            serde_json::to_writer(&create(&place, DESCRIPTION)?, &machine.to_restore()?)?;
            Ok(restoring)
        };
        begin().map_err(|source| Error::Io { operation: "loading device state", source })
    }
}

impl Drop for Restoring {
    fn drop(&mut self) {
        clear(&self.0, RESTORING);
    }
}

/// A fresh directory of the machine's, held by a descriptor: what its owner
/// may put in its place later is not ours.
fn make(directory: &Path, name: &str, uid: u32) -> io::Result<OwnedFd> {
    let path = directory.join(name);
    match std::fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    rustix::fs::mkdirat(CWD, &path, Mode::RWXU)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::open(&path, flags, Mode::empty())?;
    rustix::fs::fchown(&place, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?;
    Ok(place)
}

/// A file that its directory's owner may read and not write.
fn create(place: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(place, name, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?;
    Ok(file.into())
}

fn read(place: &OwnedFd, name: &str) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut bytes = Vec::new();
    limited(rustix::fs::openat(place, name, flags, Mode::empty())?.into(), &mut bytes)?;
    Ok(bytes)
}

fn limited(file: File, bytes: &mut Vec<u8>) -> io::Result<()> {
    let found = file.metadata()?;
    if !found.is_file() || found.len() > STATE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no device state"));
    }
    file.take(STATE_MAX).read_to_end(bytes).map(drop)
}

fn clear(directory: &Path, name: &str) {
    if let Err(error) = std::fs::remove_dir_all(directory.join(name)) {
        tracing::debug!(%error, directory = %directory.display(), name, "cannot clear away");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud_hypervisor::Settings;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("berth-state-{}", berth_types::MachineId::random()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn uid() -> u32 {
        rustix::process::getuid().as_raw()
    }

    #[test]
    fn a_save_keeps_the_devices_and_clears_the_rest_away() {
        let scratch = Scratch::new();
        let saving = Saving::begin(&scratch.0, uid()).unwrap();
        let place = scratch.0.join(SAVING);
        assert!(place.join(MEMORY).exists(), "nothing stands in the way of a copy of RAM");
        std::fs::write(place.join(DEVICES), "{}").unwrap();
        std::fs::write(place.join(DESCRIPTION), "{}").unwrap();
        saving.finish().unwrap();
        assert_eq!(std::fs::read(scratch.0.join(STATE)).unwrap(), b"{}");
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    #[test]
    fn a_save_that_wrote_nothing_or_a_link_leaves_no_state() {
        let scratch = Scratch::new();
        assert!(Saving::begin(&scratch.0, uid()).unwrap().finish().is_err());
        let saving = Saving::begin(&scratch.0, uid()).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", scratch.0.join(SAVING).join(DEVICES)).unwrap();
        assert!(saving.finish().is_err());
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
    }

    #[test]
    fn a_restore_has_our_description_beside_the_devices() {
        let scratch = Scratch::new();
        let settings = Settings::default();
        let (kernel, initrd) = (Path::new("/k"), Path::new("/i"));
        let (direct, landlock) = (false, false);
        let machine =
            Machine { settings: &settings, cpus: 1, memory: 1 << 28, kernel, initrd, direct, landlock };
        assert!(Restoring::begin(&scratch.0, uid(), &machine).is_err(), "without a state");
        std::fs::write(scratch.0.join(STATE), "devices").unwrap();
        let restoring = Restoring::begin(&scratch.0, uid(), &machine).unwrap();
        let place = scratch.0.join(RESTORING);
        assert_eq!(std::fs::read(place.join(DEVICES)).unwrap(), b"devices");
        let description = std::fs::read_to_string(place.join(DESCRIPTION)).unwrap();
        assert!(description.contains("\"ram\"") && description.contains("\"fds\":[-1]"), "{description}");
        drop(restoring);
        assert!(!place.exists());
    }
}
