//! The files of a machine's directory that drivers make and read.
//!
//! hostd is root and the hypervisor, which owns them, is the least trusted process on
//! the host. So each is opened beneath its directory by `berth_sys::machine`, which
//! follows no link and refuses what is no file of the machine's; owners are set on
//! descriptors, and every read has a limit.

use crate::Error;
pub(crate) use berth_sys::machine::{CONSOLE, DISK, Files, LOG, RAM, STATE};
use berth_sys::{Access, beneath::give};
use rustix::fs::FallocateFlags;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// The name of device state until it is whole.
pub(crate) const UNFINISHED: &str = "state.tmp";

/// A log that has grown beyond this is cut back …
const LOG_MAX: u64 = 1024 * 1024;
/// … to about this much of its end.
const LOG_KEPT: u64 = 256 * 1024;
/// What may be cut from a file's front: whole blocks, on every filesystem of note.
const LOG_BLOCK: u64 = 64 * 1024;

/// New, empty RAM for a boot. Never the old file: its pages may still be a
/// running clone's, and stale contents would only be read from disk in vain.
pub(crate) fn fresh_ram(directory: &Path, size: u64, uid: u32) -> Result<(), Error> {
    let make = || {
        let file = create(directory, RAM)?;
        file.set_len(size)?;
        // Room is taken now: a page without a block would later be a SIGBUS, and
        // the end of the machine. Extents are marked, not written.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
            Err(rustix::io::Errno::OPNOTSUPP) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
        give(&file, uid)
    };
    make().map_err(|source| Error::Io { operation: "making the machine's memory", source })
}

/// RAM that a saved machine left: exactly as large as the machine.
pub(crate) fn saved_ram(directory: &Path, size: u64, uid: u32) -> Result<(), Error> {
    let check = || {
        let file = Files::open(directory)?.open_file(RAM, Access::Both)?;
        if file.metadata()?.len() == size {
            give(&file, uid)
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "it has another size than the machine"))
        }
    };
    check().map_err(|source| Error::Io { operation: "opening the machine's saved memory", source })
}

/// A program's full path, for its process has another PATH than we.
pub(crate) fn find_program(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return name.is_file().then(|| name.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// A new file, whatever was there before.
pub(crate) fn create(directory: &Path, name: &str) -> io::Result<File> {
    Files::open(directory)?.create(name)
}

/// Removes what may not be there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes what a process leaves: a socket, a pipe, its empty group. Nobody can
/// do anything about one that stays; the next start finds it in its place.
pub(crate) fn discard(path: &Path) {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir(path),
        Ok(_) => std::fs::remove_file(path),
        Err(_) => Ok(()),
    };
    if let Err(error) = removed {
        tracing::debug!(%error, path = %path.display(), "a leftover stays");
    }
}

/// Gives a file that is whole the name by which it is looked for.
pub(crate) fn rename(directory: &Path, name: &str, new: &str) -> io::Result<()> {
    let files = Files::open(directory)?;
    files.rename(name, &files, new)
}

pub(crate) fn read(directory: &Path, name: &str) -> io::Result<File> {
    Files::open(directory)?.open_file(name, Access::Read)
}

/// A log that the hypervisor may append to, with a line of ours at its end.
pub(crate) fn log(directory: &Path, name: &str, uid: u32, line: &str) -> io::Result<File> {
    let files = Files::open(directory)?;
    if files.look(name)?.is_none() {
        give(&files.create(name)?, uid)?;
    }
    let mut file = files.open_file(name, Access::Append)?;
    let gap = if file.metadata()?.len() == 0 { "" } else { "\n" };
    file.write_all(format!("{gap}{line}\n").as_bytes())?;
    Ok(file)
}

/// The last bytes of a log, for a person or for [`crate::verdict`].
pub(crate) fn tail(directory: &Path, name: &str, limit: u64) -> String {
    let read = || {
        let mut file = read(directory, name)?;
        let start = file.metadata()?.len().saturating_sub(limit);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}

/// Cuts the front off a log that a guest has filled. Its writer appends, so it
/// goes on at the new end without knowing.
pub(crate) fn trim(directory: &Path, name: &str) -> io::Result<()> {
    let file = Files::open(directory)?.open_file(name, Access::Both)?;
    let length = file.metadata()?.len();
    if length <= LOG_MAX {
        return Ok(());
    }
    let cut = (length - LOG_KEPT) / LOG_BLOCK * LOG_BLOCK;
    match rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, cut) {
        Ok(()) => Ok(()),
        // Not every filesystem can; losing the words is better than the disk.
        Err(_) => file.set_len(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(std::path::PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("berth-files-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
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
    fn a_log_is_cut_back_and_its_writer_goes_on() {
        let scratch = Scratch::new("trim");
        let mut writer = log(&scratch.0, "log", uid(), "start").unwrap();
        for number in 0..200_000 {
            writeln!(writer, "line {number}").unwrap();
        }
        trim(&scratch.0, "log").unwrap();
        writeln!(writer, "after").unwrap();
        let length = std::fs::metadata(scratch.0.join("log")).unwrap().len();
        assert!(length <= LOG_KEPT + LOG_BLOCK + 100, "{length}");
        assert!(tail(&scratch.0, "log", 100).ends_with("after\n"));
    }

    #[test]
    fn links_are_not_followed() {
        let scratch = Scratch::new("links");
        std::os::unix::fs::symlink("/etc/hostname", scratch.0.join("log")).unwrap();
        assert!(log(&scratch.0, "log", uid(), "start").is_err());
        assert!(trim(&scratch.0, "log").is_err());
        assert_eq!(tail(&scratch.0, "log", 100), "");
        std::os::unix::fs::symlink("/etc/hostname", scratch.0.join(RAM)).unwrap();
        assert!(saved_ram(&scratch.0, 1, uid()).is_err());
        fresh_ram(&scratch.0, 4096, uid()).unwrap();
        assert!(scratch.0.join(RAM).symlink_metadata().unwrap().is_file());
        saved_ram(&scratch.0, 4096, uid()).unwrap();
        assert!(saved_ram(&scratch.0, 8192, uid()).is_err());
    }
}
