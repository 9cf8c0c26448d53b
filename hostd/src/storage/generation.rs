//! Generations as directories: `disk`, `ram`, `state`, `manifest.json`.
//!
//! A generation is filled under `.making-ID` and renamed when it is whole. A
//! sleeping machine's files are *moved* into one, for a reflink would first
//! flush all of its RAM; whoever finds `.making-ID` after a crash moves them
//! back.

use crate::{
    error::{FileContext, Result},
    private::make_closed,
    storage::{
        directory::{self, DISK, MAKING, RAM, REMOVING, STATE, clone, clone_whole},
        early::Early,
        extents,
        parting::Turns,
    },
};
use berth_sys::{Access, Directory, beneath::give, machine::Files, private::CLOSED};
use berth_types::{ByteSize, GenerationId};
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

pub const MANIFEST: &str = "manifest.json";
/// There, with nothing in it, when everything else is on the disk below.
const SYNCED: &str = "synced";
/// All of a device state, and more of a disk than is looked at.
const WARM: usize = 128 << 10;

/// How a machine's files get into a generation.
#[derive(Debug)]
pub enum Way {
    /// The machine has no process any more: its files become the generation's.
    Move,
    /// The files stay where they are: the generation shares their extents.
    Share,
    /// The same, and most of RAM is cloned already.
    Finish(Early),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    pub all: ByteSize,
    pub own: ByteSize,
}

#[derive(Clone, Debug)]
pub struct Generations {
    place: PathBuf,
    /// Whoever clones from a generation must not meet one that is parting from
    /// its machine, which may run in the next moment.
    pub(super) turns: Turns,
}

/// What became of a generation that was undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undone {
    Gone,
    /// Its files are here: nobody was there to give them back to.
    Left(PathBuf),
}

/// What was found after a start.
#[derive(Debug, Default)]
pub struct Found {
    /// With its manifest, or why it cannot be used.
    pub whole: Vec<(GenerationId, Result<Vec<u8>>)>,
    pub making: Vec<GenerationId>,
}

fn making_name(id: &GenerationId) -> String {
    format!("{MAKING}{id}")
}

/// The files of a machine or of a generation. Their directories belong to root.
pub(super) fn files(path: &Path) -> Result<Files> {
    Files::open(path).file("open", path)
}

/// One of them, if it is what it should be.
pub(super) fn open(files: &Files, name: &str, access: Access) -> Result<File> {
    files.open_file(name, access).file("open", files.path().join(name))
}

pub(super) fn create(files: &Directory, name: &str) -> Result<File> {
    files.create(name).file("create", files.path().join(name))
}

impl Generations {
    pub fn open(pool: &Path) -> Result<Self> {
        let path = pool.join("generations");
        make_closed(&path)?;
        Ok(Self { place: path, turns: Turns::default() })
    }

    pub fn directory(&self, id: &GenerationId) -> PathBuf {
        self.place.join(id.as_str())
    }

    /// Where all of them are. Opened for each use: a pool can be unmounted only while
    /// nothing in it is open.
    fn all(&self) -> Result<Directory> {
        Directory::open(&self.place).file("open", &self.place)
    }

    fn making(&self, id: &GenerationId) -> PathBuf {
        self.place.join(making_name(id))
    }

    /// Fills a generation from a machine's directory. If it fails, the
    /// machine's files are where they were.
    pub fn freeze(&self, id: &GenerationId, machine: &Path, way: Way, manifest: &[u8]) -> Result<()> {
        let path = self.making(id);
        let making = self.all()?.make(making_name(id), CLOSED).file("create", &path)?;
        let filled = self.fill(id, &making, machine, way, manifest);
        if filled.is_err()
            && let Undone::Left(files) = self.put_back(id, machine)?
        {
            tracing::error!(files = %files.display(), "a saved state could not be undone; the next start does it");
        }
        filled
    }

    fn fill(
        &self,
        id: &GenerationId,
        making: &Directory,
        machine: &Path,
        way: Way,
        manifest: &[u8],
    ) -> Result<()> {
        // First what says whose files these are; on the disk before any of them moves.
        let place = making.path().join(MANIFEST);
        let mut file = create(making, MANIFEST)?;
        file.write_all(manifest).file("write", &place)?;
        if matches!(way, Way::Move) {
            file.sync_all().file("sync", &place)?;
        }
        // What is shared may be another generation's.
        let turn = self.turns.at(machine);
        let _others = turn.read();
        let source = files(machine)?;
        for name in [RAM, DISK, STATE] {
            let (from, to) = (machine.join(name), making.path().join(name));
            if name != DISK && source.look(name).file("look at", &from)?.is_none() {
                // Only a disk: the machine was stopped.
                continue;
            }
            let file = open(&source, name, Access::Read)?;
            match (&way, name) {
                (Way::Move, _) => {
                    source.rename(name, making, name).file("move", &from)?;
                    give(&file, rustix::process::geteuid().as_raw()).file("take over", &to)?;
                }
                (Way::Finish(early), RAM) => early.finish(&file, making, RAM)?,
                (Way::Share | Way::Finish(_), _) => {
                    clone(&file, &create(making, name)?).file("clone", &from)?;
                }
            }
        }
        let (all, whole) = (self.all()?, self.directory(id));
        all.rename(making_name(id), &all, id.as_str()).file("publish", &whole)
    }

    /// Undoes a generation that was not finished. What neither goes back to the machine nor
    /// is a copy of what the machine has stays: then this is not `Undone::Gone`.
    pub fn put_back(&self, id: &GenerationId, machine: &Path) -> Result<Undone> {
        let (path, all) = (self.making(id), self.all()?);
        if all.look(making_name(id)).file("look at", &path)?.is_none() {
            return Ok(Undone::Gone);
        }
        let making = files(&path)?;
        let back = match Files::open(machine) {
            Ok(back) => Some(back),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).file("open", machine),
        };
        let there = |files: &Files, name: &str| -> Result<bool> {
            Ok(files.look(name).file("look at", files.path().join(name))?.is_some())
        };
        for name in [RAM, DISK, STATE] {
            let Some(back) = &back else { break };
            if there(&making, name)? && !there(back, name)? {
                let file = open(&making, name, Access::Read)?;
                making.rename_new(name, back, name).file("move back", machine.join(name))?;
                give(&file, back.uid()).file("give back", machine.join(name))?;
            }
        }
        let kept = match &back {
            Some(back) => there(back, DISK)?,
            None => false,
        };
        if there(&making, DISK)? && !kept {
            return Ok(Undone::Left(path));
        }
        all.remove_all(making_name(id)).file("remove", &path)?;
        Ok(Undone::Gone)
    }

    /// Removes what was begun of a generation that nobody can miss.
    pub fn drop_unfinished(&self, id: &GenerationId) -> Result<()> {
        self.all()?.remove_all(making_name(id)).file("remove", self.making(id))
    }

    /// Where an unfinished one is, if there is anything in it that a user could miss.
    pub fn unfinished_files(&self, id: &GenerationId) -> Option<PathBuf> {
        let making = self.making(id);
        let files = Files::open(&making).ok()?;
        [RAM, DISK, STATE].iter().any(|name| files.has(name)).then_some(making)
    }

    /// Whether there is a disk in it, whatever its manifest says.
    pub fn has_disk(&self, id: &GenerationId) -> bool {
        Files::open(&self.directory(id)).is_ok_and(|files| files.has(DISK))
    }

    /// Whose files an unfinished generation holds, in its own words.
    pub fn unfinished_manifest(&self, id: &GenerationId) -> Option<Vec<u8>> {
        files(&self.making(id)).ok()?.read_file(MANIFEST).ok()
    }

    /// Lays a generation's files out for a machine, but for what is in its RAM: that
    /// takes the longer the more often it has been captured, and can be done while
    /// the hypervisor starts. Whose own sleep it was gets the very file it ran on, for
    /// a clone shares blocks but no page cache, and `part`s; others `fill_ram`.
    pub fn thaw(&self, id: &GenerationId, machine: &Path, uid: u32, own: bool) -> Result<()> {
        let path = self.directory(id);
        let (target, source) = (files(machine)?, files(&path)?);
        // What the machine has goes only for what is there to take its place.
        open(&source, DISK, Access::Read)?;
        self.clear(&target)?;
        let turn = self.turns.at(&path);
        let _others = turn.read();
        for name in [DISK, RAM, STATE] {
            let (from, to) = (path.join(name), machine.join(name));
            if source.look(name).file("look at", &from)?.is_none() {
                continue;
            }
            let file = open(&source, name, Access::Read)?;
            let made = match (name, own) {
                (RAM, true) => {
                    target.link(&file, RAM).file("share", &to)?;
                    file
                }
                (RAM, false) => {
                    let size = file.metadata().file("look at", &from)?.len();
                    let ram = create(&target, RAM)?;
                    ram.set_len(size).file("size", &to)?;
                    ram
                }
                _ => clone_whole(&file, &target, name).file("clone", &from)?,
            };
            // Device state stays hostd's: a hypervisor is handed a descriptor of it.
            if name != STATE {
                give(&made, uid).file("give away", &to)?;
            }
        }
        Ok(())
    }

    /// What is in a generation's RAM, into the file that a machine has for it.
    pub fn fill_ram(&self, id: &GenerationId, machine: &Path) -> Result<()> {
        let path = self.directory(id);
        let turn = self.turns.at(&path);
        let _others = turn.read();
        let source = files(&path)?;
        if source.look(RAM).file("look at", path.join(RAM))?.is_none() {
            return Ok(());
        }
        let (from, to) = (open(&source, RAM, Access::Read)?, open(&files(machine)?, RAM, Access::Write)?);
        clone(&from, &to).file("clone", machine.join(RAM))
    }

    /// Only its disk: memory that cannot be resumed is left where it is.
    pub fn thaw_disk(&self, id: &GenerationId, machine: &Path, uid: u32) -> Result<()> {
        let from = open(&files(&self.directory(id))?, DISK, Access::Read)?;
        let (to, target) = (machine.join(DISK), files(machine)?);
        self.clear(&target)?;
        clone_whole(&from, &target, DISK).and_then(|disk| give(&disk, uid)).file("clone", &to)
    }

    /// What a machine's directory had of a life that is over.
    fn clear(&self, machine: &Files) -> Result<()> {
        for name in [DISK, RAM, STATE] {
            machine.remove(name).file("remove", machine.path().join(name))?;
        }
        Ok(())
    }

    pub fn write_out(&self, id: &GenerationId) -> Result<()> {
        let path = self.directory(id);
        directory::write_out(&open(&files(&path)?, RAM, Access::Read)?).file("write out", path.join(RAM))
    }

    /// Puts everything of a generation on the disk below, and then the word that it is there
    /// if that can be said.
    pub fn sync(&self, id: &GenerationId, whole: bool) -> Result<()> {
        let path = self.directory(id);
        let own = files(&path)?;
        for name in [STATE, DISK, RAM, MANIFEST] {
            if own.look(name).file("look at", path.join(name))?.is_some() {
                open(&own, name, Access::Read)?.sync_data().file("sync", path.join(name))?;
            }
        }
        own.sync().file("sync", &path)?;
        self.all()?.sync().file("sync", &self.place)?;
        if whole && !own.has(SYNCED) {
            // Another sync of the same may say so at this moment too.
            match own.create(SYNCED) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => drop(created.file("create", path.join(SYNCED))?),
            }
            own.sync().file("sync", path)?;
        }
        Ok(())
    }

    /// Whether all of it reached the disk below, whatever has become of the host since.
    pub fn is_synced(&self, id: &GenerationId) -> bool {
        Directory::open(&self.directory(id)).is_ok_and(|own| own.has(SYNCED))
    }

    pub fn remove(&self, id: &GenerationId) -> Result<()> {
        let (all, hidden) = (self.all()?, format!("{REMOVING}{id}"));
        let path = self.place.join(&hidden);
        gone(all.rename(id.as_str(), &all, &hidden)).file("hide", &path)?;
        all.remove_all(&hidden).file("remove", path)
    }

    pub fn read_manifest(&self, id: &GenerationId) -> Result<Vec<u8>> {
        let path = self.directory(id);
        files(&path)?.read_file(MANIFEST).file("read", path.join(MANIFEST))
    }

    /// Writes a file of a template down: whole, or not at all.
    pub fn note(&self, id: &GenerationId, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.directory(id);
        let (own, fresh) = (files(&path)?, format!("{name}.new"));
        let mut file = create(&own, &fresh)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        written.and_then(|()| own.rename(&fresh, &own, name)).file("write", path.join(name))?;
        own.sync().file("sync", path)
    }

    /// What its files occupy, and what of that nobody shares: removing it would
    /// give that back. A filesystem that does not tell is taken to share nothing.
    pub fn occupied(&self, id: &GenerationId) -> Occupied {
        let Ok(own) = Files::open(&self.directory(id)) else {
            return Occupied { all: ByteSize(0), own: ByteSize(0) };
        };
        let all = ByteSize([RAM, DISK, STATE, MANIFEST].iter().map(|name| own.occupied(name)).sum());
        Occupied { all, own: extents::own(&own).map_or(all, ByteSize) }
    }

    pub fn survey(&self) -> Result<Found> {
        let (mut found, all) = (Found::default(), self.all()?);
        for name in all.names().file("list", &self.place)? {
            let name = name.to_string_lossy();
            if name.starts_with(REMOVING) {
                if let Err(error) = all.remove_all(&*name) {
                    tracing::error!(%error, path = %self.place.join(&*name).display(), "cannot finish a removal");
                }
            } else if let Some(id) = name.strip_prefix(MAKING) {
                found.making.extend(id.parse::<GenerationId>());
            } else if let Ok(id) = name.parse::<GenerationId>() {
                // One that cannot be finished shares its RAM with what may run on it.
                let manifest = self.finish_parting(&id).and_then(|()| self.read_manifest(&id));
                found.whole.push((id, manifest));
            }
        }
        Ok(found)
    }
}

/// The device state's size and checksum.
pub fn fingerprint(directory: &Path) -> Result<(u64, String)> {
    let bytes = match files(directory)?.read_file(STATE) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, String::new())),
        Err(error) => return Err(error).file("read", directory.join(STATE)),
    };
    let digest = Sha256::digest(&bytes);
    Ok((bytes.len() as u64, digest.iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// What a hypervisor reads of a machine before it answers. A clone has nothing in memory,
/// and behind the RAM that is read ahead it would wait.
pub fn warm(machine: &Path) -> Result<()> {
    let files = files(machine)?;
    [DISK, STATE].iter().try_for_each(|name| warm_file(&files, name).file("read", machine.join(name)))
}

/// How a file begins, into memory. One that is not there is not missed.
fn warm_file(files: &Files, name: &str) -> io::Result<()> {
    gone(files.open_file(name, Access::Read).and_then(|mut file| file.read(&mut vec![0; WARM])).map(drop))
}

pub(super) fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
