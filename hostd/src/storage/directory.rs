//! A machine's directory: its disk, its record, its console.

use crate::{
    error::{FileContext, Result},
    format::{Kind, Signer},
    private::make_closed,
};
pub use berth_sys::machine::{CONSOLE, DISK, RAM, RECORD, STATE};
use berth_sys::{
    Access, Directory, Expected, Owner,
    beneath::{give, sync_parent},
    machine::{Files, LOG, MODE},
};
use berth_types::{Machine, MachineId};
use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

/// A directory whose name starts so is half-made and belongs to no user.
pub const MAKING: &str = ".making-";
/// A directory whose name starts so is half gone.
pub const REMOVING: &str = ".removing-";

/// What the pool's directories say after a start.
#[derive(Debug, Default)]
pub struct Survey {
    pub whole: Vec<Found>,
    pub making: Vec<Found>,
    pub removing: Vec<MachineId>,
}

/// A machine's directory.
#[derive(Debug)]
pub struct Found {
    pub id: MachineId,
    pub directory: PathBuf,
    /// Its signed record, or why that cannot be believed.
    pub record: Result<Machine, String>,
}

impl Found {
    /// Whether there is anything that a user could miss. A directory that cannot be looked
    /// into may have something.
    pub fn has_files(&self) -> bool {
        let there =
            |files: &Directory| [DISK, STATE, RAM].iter().any(|name| !matches!(files.look(name), Ok(None)));
        Directory::open(&self.directory).map_or(true, |files| there(&files))
    }
}

/// Everything that a machine's directory starts with; on disk, with all that came before,
/// when the directory above it is. Its hypervisor owns the files, and they are all there
/// before it runs, because it can make none.
pub fn fill(
    machines: &Directory,
    name: &str,
    machine: &Machine,
    record: &[u8],
    image_disk: Option<&Path>,
) -> Result<()> {
    let place = machines.path().join(name);
    let files = machines.make(name, MODE).and_then(|made| {
        made.give_group(machine.uid)?;
        Files::of(made)
    });
    let files = files.file("create", &place)?;
    // Before the disk, and on disk: half a directory that has a disk then says itself that it
    // has never run.
    let recorded = put_record(&files, record)?;
    if let Some(image_disk) = image_disk {
        recorded.sync_all().file("sync", place.join(RECORD))?;
        let image = File::open(image_disk).file("open", image_disk)?;
        let disk = files.create(DISK).file("create", place.join(DISK))?;
        clone(&image, &disk).file("clone", image_disk)?;
        let have = disk.metadata().file("look at", &place)?.len();
        disk.set_len(machine.disk.bytes().max(have)).file("size", place.join(DISK))?;
        disk.sync_all().and_then(|()| give(&disk, machine.uid)).file("sync", place.join(DISK))?;
    }
    for log in [CONSOLE, LOG] {
        files.create(log).and_then(|file| give(&file, machine.uid)).file("create", place.join(log))?;
    }
    Ok(())
}

/// The signed mirror of the store's record. The store is what was acknowledged, so
/// nobody waits for this to reach the disk.
pub fn write_record(files: &Files, bytes: &[u8]) -> Result<()> {
    put_record(files, bytes).map(drop)
}

fn put_record(files: &Files, bytes: &[u8]) -> Result<File> {
    const FRESH: &str = "machine.new";
    let written = files.create(FRESH).and_then(|mut file| {
        file.write_all(bytes)?;
        files.rename(FRESH, files, RECORD)?;
        Ok(file)
    });
    written.file("write", files.path().join(RECORD))
}

/// Writes beside, syncs, renames, and syncs that: a reader never sees half of it, and what
/// has returned lasts.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh).file("create", &fresh)?;
    file.write_all(bytes).file("write", &fresh)?;
    file.sync_data().file("sync", &fresh)?;
    fs::rename(&fresh, path).file("rename", path)?;
    sync_parent(path).file("sync", path)
}

pub fn sync(directory: &Path) -> Result<()> {
    File::open(directory).and_then(|file| file.sync_all()).file("sync", directory)
}

/// Shares the blocks of one file with another, which is empty or as large.
pub fn clone(from: &File, to: &File) -> io::Result<()> {
    match rustix::fs::ioctl_ficlone(to, from) {
        // Flow tests run on any filesystem.
        Err(_) if cfg!(test) => copy_sparse(from, to),
        cloned => Ok(cloned?),
    }
}

/// Clones into a new file of that name, which is never there in part: not after a power
/// failure either, for the filesystem's journal keeps the order of the clone and the rename.
pub fn clone_whole(from: &File, to: &Directory, name: &str) -> io::Result<File> {
    let part = format!("{name}.part");
    let made = to.create(&part)?;
    clone(from, &made)?;
    to.rename(&part, to, name)?;
    Ok(made)
}

/// Moves a disk, if it is there, from one directory to another, and gives it away.
pub fn take_in(from: &Path, to: &Path, uid: u32) -> Result<()> {
    let moved = || {
        // What is moved aside was a machine's, or was about to be root's.
        let from = Directory::open(from)?;
        let disk = from.file(DISK, Access::Read, Expected::of(Owner::Anyone))?;
        from.rename(DISK, &Directory::open(to)?, DISK)?;
        give(&disk, uid)
    };
    match moved() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        moved => moved.file("move the disk in", from),
    }
}

/// Changes when the file does.
pub fn version(path: &Path) -> Result<String> {
    let stat = fs::metadata(path).file("look at", path)?;
    Ok(format!("{}-{}-{}", stat.len(), stat.mtime(), stat.mtime_nsec()))
}

/// Copies an image's disk into the pool, once per version of it.
pub fn import(directory: &Path, name: &str, disk: &Path) -> Result<PathBuf> {
    make_closed(directory)?;
    let copy = directory.join(format!("{name}@{}", version(disk)?));
    if copy.exists() {
        return Ok(copy);
    }
    let fresh = directory.join(format!("{MAKING}{name}-{}", MachineId::random()));
    let source = File::open(disk).file("open", disk)?;
    let target = File::create(&fresh).file("create", &fresh)?;
    clone(&source, &target).or_else(|_| copy_sparse(&source, &target)).file("copy", disk)?;
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
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Copies what is data and leaves holes as holes.
fn copy_sparse(mut source: &File, mut target: &File) -> io::Result<()> {
    let length = source.metadata()?.len();
    let mut at = 0;
    while at < length {
        let Ok(data) = rustix::fs::seek(source, rustix::fs::SeekFrom::Data(at)) else { break };
        let hole = rustix::fs::seek(source, rustix::fs::SeekFrom::Hole(data))?;
        source.seek(SeekFrom::Start(data))?;
        target.seek(SeekFrom::Start(data))?;
        io::copy(&mut source.take(hole - data), &mut target)?;
        at = hole;
    }
    target.set_len(length)?;
    target.sync_all()
}

/// The end of a console, as far as it is one.
pub fn tail(files: &Files, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = files.open_file(CONSOLE, Access::Read)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Has the data of a file on its way to the disk below: a clone would wait for that.
/// No more, for to wait until the disk has it takes 30 ms.
#[allow(unsafe_code)]
pub fn write_out(file: &File) -> io::Result<()> {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: takes plain numbers and a descriptor that is open.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Removes a file that nobody needs; fine if it is gone.
pub fn discard(files: &Directory, name: &str) {
    if let Err(error) = files.remove(name) {
        tracing::warn!(%error, file = %files.path().join(name).display(), "cannot remove a file");
    }
}

/// A machine's record as its directory has it, if it is signed and that machine's. Only root
/// can have written it.
pub fn read_record(directory: &Path, id: &MachineId, signer: &Signer) -> Result<Machine, String> {
    let bytes = Files::open(directory).and_then(|files| files.read_file(RECORD));
    let bytes = bytes.map_err(|error| format!("its record: {error}"))?;
    let record: Machine =
        signer.read(Kind::Machine, &bytes).map_err(|unreadable| format!("its record: {unreadable}"))?;
    if record.id == *id { Ok(record) } else { Err("its record is another machine's".to_owned()) }
}

pub fn survey(machines: &Directory, signer: &Signer) -> Result<Survey> {
    let found = |id: &str, directory: PathBuf| {
        let id: MachineId = id.parse().ok()?;
        let record = read_record(&directory, &id, signer);
        Some(Found { id, directory, record })
    };
    let mut survey = Survey::default();
    for name in machines.names().file("list", machines.path())? {
        let name = name.to_string_lossy();
        let place = machines.path().join(&*name);
        if let Some(id) = name.strip_prefix(MAKING) {
            survey.making.extend(found(id, place));
        } else if let Some(id) = name.strip_prefix(REMOVING) {
            survey.removing.extend(id.parse::<MachineId>());
        } else {
            survey.whole.extend(found(&name, place));
        }
    }
    Ok(survey)
}
