//! A machine's directory: its disk, its record, its console.

use crate::error::{Error, FileContext, Result};
use berth_types::{ByteSize, Machine, MachineId};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
};

/// A directory whose name starts so is half-made and belongs to no user.
pub const MAKING: &str = ".making-";
/// A directory whose name starts so is half gone.
pub const REMOVING: &str = ".removing-";

pub const DISK: &str = "disk";
pub const STATE: &str = "state";
pub const CONSOLE: &str = "console.log";
pub const MACHINE_JSON: &str = "machine.json";

/// What the pool's directories say after a start.
#[derive(Debug, Default)]
pub struct Survey {
    pub whole: Vec<(MachineId, Option<Machine>)>,
    pub making: Vec<MachineId>,
    pub removing: Vec<MachineId>,
}

pub fn make_private(path: &Path) -> Result<()> {
    let exists = path.is_dir();
    fs::DirBuilder::new().recursive(true).mode(0o711).create(path).file("create", path)?;
    if !exists {
        // Hypervisors run as users of their own and pass through, but cannot list.
        fs::set_permissions(path, fs::Permissions::from_mode(0o711)).file("protect", path)?;
    }
    Ok(())
}

/// Everything a machine's directory starts with; on disk, with all that came before,
/// when the directory above it is.
pub fn fill(directory: &Path, machine: &Machine, image_disk: Option<&Path>) -> Result<()> {
    fs::DirBuilder::new().mode(0o700).create(directory).file("create", directory)?;
    let mut own = vec![directory.to_owned()];
    if let Some(image_disk) = image_disk {
        let disk = directory.join(DISK);
        clone(image_disk, &disk)?;
        let file = OpenOptions::new().write(true).open(&disk).file("open", &disk)?;
        let have = file.metadata().file("look at", &disk)?.len();
        file.set_len(machine.disk.bytes().max(have)).file("size", &disk)?;
        file.sync_all().file("sync", &disk)?;
        own.push(disk);
    }
    write_record(directory, machine)?;
    let console = directory.join(CONSOLE);
    File::create(&console).file("create", &console)?;
    own.push(console);
    for path in own {
        chown(&path, Some(machine.uid), Some(machine.uid)).file("give away", path)?;
    }
    Ok(())
}

/// A mirror of the store's record. The store is what was acknowledged, so
/// nobody waits for this to reach the disk.
pub fn write_record(directory: &Path, machine: &Machine) -> Result<()> {
    let bytes =
        serde_json::to_vec_pretty(machine).map_err(|source| Error::Record { what: "a machine", source })?;
    let (path, fresh) = (directory.join(MACHINE_JSON), directory.join("machine.new"));
    fs::write(&fresh, bytes).file("write", &fresh)?;
    fs::rename(&fresh, &path).file("rename", path)
}

/// Writes beside, syncs, then renames: a reader never sees half of it.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh).file("create", &fresh)?;
    file.write_all(bytes).file("write", &fresh)?;
    file.sync_data().file("sync", &fresh)?;
    fs::rename(&fresh, path).file("rename", path)
}

pub fn sync(directory: &Path) -> Result<()> {
    File::open(directory).and_then(|file| file.sync_all()).file("sync", directory)
}

pub fn clone(from: &Path, to: &Path) -> Result<()> {
    // Flow tests run on any filesystem.
    if cfg!(test) {
        return copy_sparse(from, to);
    }
    let source = File::open(from).file("open", from)?;
    let target = File::create(to).file("create", to)?;
    rustix::fs::ioctl_ficlone(&target, &source).file("clone", to)
}

/// The same into a file that is there, and may be in use.
pub fn clone_into(from: &Path, to: &Path) -> Result<()> {
    if cfg!(test) {
        return copy_sparse(from, to);
    }
    let source = File::open(from).file("open", from)?;
    let target = File::options().write(true).open(to).file("open", to)?;
    rustix::fs::ioctl_ficlone(&target, &source).file("clone", to)
}

/// Changes when the file does.
pub fn version(path: &Path) -> Result<String> {
    let stat = fs::metadata(path).file("look at", path)?;
    Ok(format!("{}-{}-{}", stat.len(), stat.mtime(), stat.mtime_nsec()))
}

/// Copies an image's disk into the pool, once per version of it.
pub fn import(directory: &Path, name: &str, disk: &Path) -> Result<PathBuf> {
    make_private(directory)?;
    let copy = directory.join(format!("{name}@{}", version(disk)?));
    if copy.exists() {
        return Ok(copy);
    }
    let fresh = directory.join(format!("{MAKING}{name}-{}", MachineId::random()));
    if clone(disk, &fresh).is_err() {
        copy_sparse(disk, &fresh)?;
    }
    fs::rename(&fresh, &copy).file("rename", &copy)?;
    // Older versions are still needed by nobody: machines have clones of their own.
    for entry in fs::read_dir(directory).file("list", directory)?.flatten() {
        let other = entry.file_name();
        let other = other.to_string_lossy();
        if other.starts_with(&format!("{name}@")) && entry.path() != copy {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(copy)
}

/// Removes what a hostd that was killed had copied so far.
pub fn forget_imports(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(MAKING) {
            discard(&entry.path());
        }
    }
}

/// Copies what is data and leaves holes as holes.
fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let mut source = File::open(from).file("open", from)?;
    let mut target = File::create(to).file("create", to)?;
    let length = source.metadata().file("look at", from)?.len();
    let mut at = 0;
    while at < length {
        let Ok(data) = rustix::fs::seek(&source, rustix::fs::SeekFrom::Data(at)) else { break };
        let hole = rustix::fs::seek(&source, rustix::fs::SeekFrom::Hole(data)).file("read", from)?;
        source.seek(SeekFrom::Start(data)).file("read", from)?;
        target.seek(SeekFrom::Start(data)).file("write", to)?;
        io::copy(&mut (&mut source).take(hole - data), &mut target).file("copy", to)?;
        at = hole;
    }
    target.set_len(length).file("size", to)?;
    target.sync_all().file("sync", to)
}

/// The bytes that a disk's file has on the disk below.
pub fn disk_used(directory: &Path) -> Option<ByteSize> {
    fs::metadata(directory.join(DISK)).ok().map(|stat| ByteSize(stat.blocks() * 512))
}

/// Together, as if nobody shared anything with them.
pub fn occupied(files: impl IntoIterator<Item = PathBuf>) -> ByteSize {
    let stats = files.into_iter().filter_map(|file| fs::metadata(file).ok());
    ByteSize(stats.map(|stat| stat.blocks() * 512).sum())
}

pub fn tail(path: &Path, limit: u64) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Has the data of a file on its way to the disk below: a clone would wait for that.
/// No more, for to wait until the disk has it takes 30 ms.
#[allow(unsafe_code)]
pub fn write_out(path: &Path) -> Result<()> {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let written = File::open(path).and_then(|file| {
        // SAFETY: takes plain numbers and a descriptor that is open.
        match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    written.file("write out", path)
}

/// Removes a file that nobody needs; fine if it is gone.
pub fn discard(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, file = %path.display(), "cannot remove a file");
        }
        _ => {}
    }
}

pub fn survey(machines: &Path) -> Result<Survey> {
    let mut survey = Survey::default();
    for entry in fs::read_dir(machines).file("list", machines)? {
        let entry = entry.file("list", machines)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if let Some(id) = name.strip_prefix(MAKING) {
            survey.making.extend(id.parse::<MachineId>());
        } else if let Some(id) = name.strip_prefix(REMOVING) {
            survey.removing.extend(id.parse::<MachineId>());
        } else if let Ok(id) = name.parse::<MachineId>() {
            let record = fs::read(entry.path().join(MACHINE_JSON)).ok();
            let record = record.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            survey.whole.push((id, record));
        }
    }
    Ok(survey)
}
