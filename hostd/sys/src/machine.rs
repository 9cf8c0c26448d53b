//! The files of a machine, whether it runs or is saved.
//!
//! A machine's directory belongs to root and to the machine's group: its hypervisor, which
//! has a user and a group of one number, passes through to the files that hostd made for
//! it and can neither add, remove nor rename one. A saved machine's is root's alone.

use crate::beneath::{Access, Directory, Expected, Owner};
use std::{ffi::OsStr, fs::File, io, ops::Deref, os::unix::fs::MetadataExt as _, path::Path};

/// Of a machine's directory.
pub const MODE: u32 = 0o710;

pub const DISK: &str = "disk";
pub const RAM: &str = "ram";
/// The devices of a machine that was saved. Its hypervisor never has more of it than a
/// descriptor.
pub const STATE: &str = "state";
pub const CONSOLE: &str = "console.log";
/// What the hypervisor itself has to say.
pub const LOG: &str = "hypervisor.log";
pub const RECORD: &str = "machine.json";

/// Some tens of kilobytes for each vCPU; far more is no device state.
pub const STATE_MAX: u64 = 16 << 20;
/// More than a record or a manifest ever takes.
const RECORD_MAX: u64 = 1 << 20;

/// A directory with a machine's files, and whose they may be.
#[derive(Debug)]
pub struct Files {
    directory: Directory,
    uid: u32,
    owner: Owner,
}

impl Deref for Files {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        &self.directory
    }
}

impl Files {
    /// Refuses a directory in which somebody else could exchange files.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(Directory::open(path)?)
    }

    pub fn of(directory: Directory) -> io::Result<Self> {
        let found = directory.stat()?;
        let own = rustix::process::geteuid().as_raw();
        if found.st_uid != own || found.st_mode & 0o022 != 0 {
            let why = format!(
                "its directory belongs to uid {} with mode {:04o}",
                found.st_uid,
                found.st_mode & 0o7777
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let (uid, closed) = (found.st_gid, found.st_mode & 0o077 == 0);
        Ok(Self { directory, uid, owner: if closed { Owner::Anyone } else { Owner::OwnOr(uid) } })
    }

    /// The machine's user; root's in a directory of root alone.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// What a file of this name has to be.
    pub fn expected(&self, name: &str) -> Expected {
        let expected = Expected::of(self.owner);
        match name {
            // A saved machine's, until the two part.
            RAM => expected.with_links(2),
            STATE => expected.at_most(STATE_MAX),
            // Never its hypervisor's to write.
            RECORD => Expected::of(Owner::Own).at_most(RECORD_MAX),
            _ => expected,
        }
    }

    pub fn open_file(&self, name: &str, access: Access) -> io::Result<File> {
        let file = self.directory.file(name, access, self.expected(name))?;
        let found = file.metadata()?;
        // The other name of a shared RAM is a saved machine's, and never a host's file.
        if found.nlink() > 1 && self.owner != Owner::Anyone && found.uid() != self.uid {
            let why = format!("it has {} names and belongs to uid {}", found.nlink(), found.uid());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(file)
    }

    /// A file that is read whole, and so has a limit.
    pub fn read_file(&self, name: &str) -> io::Result<Vec<u8>> {
        let expected = self.expected(name);
        self.directory.read(name, expected.at_most(expected.size.min(STATE_MAX)))
    }

    /// Bytes on the disk below; of what is not there, none.
    pub fn occupied(&self, name: impl AsRef<OsStr>) -> u64 {
        let found = self.directory.look(name).ok().flatten();
        found.map_or(0, |found| u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512))
    }
}
