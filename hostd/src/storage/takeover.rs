//! Makes root the owner of machines' directories.
//!
//! Earlier versions gave each to its hypervisor's user, who could put a link, a FIFO or a
//! foreign file in the place of any file. On every start a directory that is not root's is
//! taken over: first it is root's, so that nothing changes any more, then every entry is
//! looked at. What is no file of the machine's stays under a name that nothing opens.

use crate::error::{FileContext, Result};
use berth_sys::{
    Access, Directory,
    machine::{CONSOLE, DISK, Files, LOG, MODE, RAM, RECORD, STATE},
};
use rustix::fs::{Mode, fchmod};
use std::{
    ffi::{CStr, OsStr},
    io,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

/// Files that a hypervisor or hostd left; everything else is nobody's.
const KNOWN: [&str; 6] = [DISK, RAM, STATE, CONSOLE, LOG, RECORD];
/// What is there only while it is written; the next writer makes it anew.
const UNFINISHED: [&str; 6] = ["machine.new", "state.tmp", "saving", "restoring", "disk.part", "state.part"];
/// The mode of a directory that is being looked at.
const TAKING: u32 = 0o510;
/// How the name of something begins that was in a file's place.
pub const ASIDE: &str = "aside-";

/// All that are not root's yet.
pub fn take_over(machines: &Path) -> Result<()> {
    let all = Directory::open(machines).file("open", machines)?;
    for name in all.names().file("list", machines)? {
        let name = name.to_string_lossy();
        let path = machines.join(&*name);
        // One machine's bad directory is that machine's: hostd refuses to open it later.
        match one(&all, &name) {
            Ok(None) => {}
            Ok(Some(aside)) if aside.is_empty() => {
                tracing::info!(directory = %path.display(), "a machine's directory is root's now");
            }
            Ok(Some(aside)) => tracing::error!(
                directory = %path.display(),
                "a machine's directory had what its hypervisor must have put there, set aside: {}",
                aside.join(", ")
            ),
            Err(error) => {
                tracing::error!(%error, directory = %path.display(), "cannot take over a machine's directory");
            }
        }
    }
    Ok(())
}

/// `None`: it was root's already. Else what was set aside, and why.
fn one(all: &Directory, name: &str) -> io::Result<Option<Vec<String>>> {
    let directory = all.directory(name)?;
    let found = directory.stat()?;
    let own = rustix::process::geteuid().as_raw();
    if found.st_uid == own && found.st_mode & 0o7777 == MODE {
        return Ok(None);
    }
    // Only root could have changed the owner; the group may be any of the hypervisor's.
    let uid = if found.st_uid == own { found.st_gid } else { found.st_uid };
    directory.give(own, uid)?;
    // The last step sets the real one: cut short by a crash, all of this is done again.
    directory.set_mode(TAKING)?;
    let files = Files::of(directory)?;
    let mut aside = Vec::new();
    for entry in files.names()? {
        if let Err(error) = keep(&files, &entry) {
            let shown: String = entry.to_string_lossy().escape_debug().collect();
            let new = set_aside(&files, &entry)?;
            aside.push(format!("{shown} ({error}) as {new}"));
        }
    }
    files.set_mode(MODE)?;
    Ok(Some(aside))
}

/// A file that is the machine's, from now on for its user alone.
fn keep(files: &Files, entry: &CStr) -> io::Result<()> {
    let name = entry.to_str().map_err(io::Error::other)?;
    if UNFINISHED.contains(&name) {
        return files.remove_all(name);
    }
    if !KNOWN.contains(&name) {
        return Err(io::Error::other("it is no file of a machine"));
    }
    let file = files.open_file(name, Access::Read)?;
    Ok(fchmod(&file, Mode::RUSR | Mode::WUSR)?)
}

/// Renames whatever it is; nothing is deleted, for it may be all that is left.
fn set_aside(files: &Files, entry: &CStr) -> io::Result<String> {
    for number in 1..=u32::MAX {
        let new = format!("{ASIDE}{number}");
        match files.rename_new(OsStr::from_bytes(entry.to_bytes()), files, &new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            renamed => return renamed.map(|()| new),
        }
    }
    Err(io::Error::other("there is too much aside already"))
}
