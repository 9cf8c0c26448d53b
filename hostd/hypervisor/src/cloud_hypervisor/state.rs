//! Device state between our one file and the directories that Cloud Hypervisor
//! reads and writes: `state.json` for the devices, `config.json` for what they
//! are, and `memory-ranges` for RAM that it has to copy — which it never may.

use super::config::Machine;
use crate::{
    Error,
    files::{self, Files, STATE, UNFINISHED},
};
use berth_sys::{Directory, Expected, Owner, machine::STATE_MAX};
use rustix::fs::{Mode, fchmod};
use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Both in the machine's directory, and there only meanwhile.
pub(super) const SAVING: &str = "saving";
pub(super) const RESTORING: &str = "restoring";

const DEVICES: &str = "state.json";
const DESCRIPTION: &str = "config.json";
const MEMORY: &str = "memory-ranges";

/// A save under way.
pub(super) struct Saving {
    directory: PathBuf,
    place: Directory,
    uid: u32,
}

impl Saving {
    /// Makes room for it. The file that RAM would be copied to is there already:
    /// a hypervisor that wants to copy fails at once, and not after minutes.
    pub(super) fn begin(directory: &Path, uid: u32) -> Result<Self, Error> {
        let begin = || {
            let place = make(directory, SAVING, uid)?;
            create(&place, MEMORY)?;
            Ok(Self { directory: directory.to_owned(), place, uid })
        };
        begin().map_err(|source| Error::Io { operation: "saving device state", source })
    }

    /// Takes over what was written. Renamed when it is whole; putting it on the
    /// disk below is for whoever wants it to last.
    pub(super) fn finish(self) -> Result<(), Error> {
        let finish = || {
            let written = Expected::of(Owner::OwnOr(self.uid)).at_most(STATE_MAX);
            let devices = self.place.read(DEVICES, written)?;
            let mut state = files::create(&self.directory, UNFINISHED)?;
            state.write_all(&devices)?;
            files::rename(&self.directory, UNFINISHED, STATE)
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
            let devices = Files::open(directory)?.read_file(STATE)?;
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

/// A fresh directory of the machine's, held by a descriptor. Its hypervisor may put
/// anything into it, and nothing in its place.
fn make(directory: &Path, name: &str, uid: u32) -> io::Result<Directory> {
    let files = Files::open(directory)?;
    files.remove_all(name)?;
    let place = files.make(name, 0o700)?;
    place.give(uid, uid)?;
    Ok(place)
}

/// A file that its directory's owner may read and not write.
fn create(place: &Directory, name: &str) -> io::Result<File> {
    let file = place.create(name)?;
    fchmod(&file, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?;
    Ok(file)
}

fn clear(directory: &Path, name: &str) {
    if let Err(error) = Files::open(directory).and_then(|files| files.remove_all(name)) {
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
