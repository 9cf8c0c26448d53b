//! Generations as directories: `disk`, `ram`, `state`, `manifest.json`.
//!
//! A generation is filled under `.making-ID` and renamed when it is whole. A
//! sleeping machine's files are *moved* into one, for a reflink would first
//! flush all of its RAM; whoever finds `.making-ID` after a crash moves them
//! back.

use crate::{
    error::{FileContext, Result},
    storage::{
        directory::{self, DISK, MAKING, REMOVING, STATE, clone, make_private, sync},
        early::Early,
        extents,
        parting::Turns,
    },
};
use berth_types::{ByteSize, GenerationId};
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt, MetadataExt, chown},
    path::{Path, PathBuf},
};

pub const RAM: &str = "ram";
pub const MANIFEST: &str = "manifest.json";
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

/// What was found after a start.
#[derive(Debug, Default)]
pub struct Found {
    pub whole: Vec<(GenerationId, Vec<u8>)>,
    pub making: Vec<GenerationId>,
}

impl Generations {
    pub fn open(pool: &Path) -> Result<Self> {
        let path = pool.join("generations");
        make_private(&path)?;
        Ok(Self { place: path, turns: Turns::default() })
    }

    pub fn directory(&self, id: &GenerationId) -> PathBuf {
        self.place.join(id.as_str())
    }

    fn making(&self, id: &GenerationId) -> PathBuf {
        self.place.join(format!("{MAKING}{id}"))
    }

    /// Fills a generation from a machine's directory. If it fails, the
    /// machine's files are where they were.
    pub fn freeze(&self, id: &GenerationId, machine: &Path, way: Way, manifest: &[u8]) -> Result<()> {
        let making = self.making(id);
        fs::DirBuilder::new().mode(0o700).create(&making).file("create", &making)?;
        let filled = self.fill(id, machine, way, manifest);
        if filled.is_err() {
            self.put_back(id, machine)?;
        }
        filled
    }

    fn fill(&self, id: &GenerationId, machine: &Path, way: Way, manifest: &[u8]) -> Result<()> {
        let making = self.making(id);
        // First what says whose files these are.
        let place = making.join(MANIFEST);
        fs::write(&place, manifest).file("write", &place)?;
        // What is shared may be another generation's.
        let turn = self.turns.at(machine);
        let _others = turn.read();
        for name in [RAM, DISK, STATE] {
            let (from, to) = (machine.join(name), making.join(name));
            if !from.exists() && name != DISK {
                // Only a disk: the machine was stopped.
                continue;
            }
            match (&way, name) {
                (Way::Move, _) => fs::rename(&from, &to).file("move", &from)?,
                (Way::Finish(early), RAM) => early.finish(&from, &to)?,
                (Way::Share | Way::Finish(_), _) => clone(&from, &to)?,
            }
            chown(&to, Some(0), Some(0)).file("take over", &to)?;
        }
        let whole = self.directory(id);
        fs::rename(&making, &whole).file("publish", &whole)
    }

    /// Undoes a generation that was not finished.
    pub fn put_back(&self, id: &GenerationId, machine: &Path) -> Result<()> {
        let making = self.making(id);
        for name in [RAM, DISK, STATE] {
            let (from, to) = (making.join(name), machine.join(name));
            if from.exists() && !to.exists() && machine.is_dir() {
                fs::rename(&from, &to).file("move back", &to)?;
                let owner = fs::metadata(machine).file("look at", machine)?;
                chown(&to, Some(owner.uid()), Some(owner.gid())).file("give back", &to)?;
            }
        }
        gone(fs::remove_dir_all(&making)).file("remove", &making)
    }

    /// Whose files an unfinished generation holds, in its own words.
    pub fn unfinished_manifest(&self, id: &GenerationId) -> Option<Vec<u8>> {
        fs::read(self.making(id).join(MANIFEST)).ok()
    }

    /// Lays a generation's files out for a machine, but for what is in its RAM: that
    /// takes the longer the more often it has been captured, and can be done while
    /// the hypervisor starts. Whose own sleep it was gets the very file it ran on, for
    /// a clone shares blocks but no page cache, and `part`s; others `fill_ram`.
    pub fn thaw(&self, id: &GenerationId, machine: &Path, uid: u32, own: bool) -> Result<()> {
        let source = self.directory(id);
        self.clear(machine)?;
        let turn = self.turns.at(&source);
        let _others = turn.read();
        for name in [DISK, RAM, STATE] {
            let (from, to) = (source.join(name), machine.join(name));
            if !from.exists() {
                continue;
            }
            match (name, own) {
                (RAM, true) => fs::hard_link(&from, &to).file("share", &to)?,
                (RAM, false) => {
                    let size = fs::metadata(&from).file("look at", &from)?.len();
                    File::create(&to).and_then(|file| file.set_len(size)).file("create", &to)?;
                }
                _ => clone(&from, &to)?,
            }
            chown(&to, Some(uid), Some(uid)).file("give away", &to)?;
        }
        Ok(())
    }

    /// What is in a generation's RAM, into the file that a machine has for it.
    pub fn fill_ram(&self, id: &GenerationId, machine: &Path) -> Result<()> {
        let source = self.directory(id);
        let (from, to) = (source.join(RAM), machine.join(RAM));
        let turn = self.turns.at(&source);
        let _others = turn.read();
        if from.exists() { directory::clone_into(&from, &to) } else { Ok(()) }
    }

    /// Only its disk: memory that cannot be resumed is left where it is.
    pub fn thaw_disk(&self, id: &GenerationId, machine: &Path, uid: u32) -> Result<()> {
        let to = machine.join(DISK);
        self.clear(machine)?;
        clone(&self.directory(id).join(DISK), &to)?;
        chown(&to, Some(uid), Some(uid)).file("give away", &to)
    }

    /// What a machine's directory had of a life that is over.
    fn clear(&self, machine: &Path) -> Result<()> {
        for name in [DISK, RAM, STATE] {
            let path = machine.join(name);
            gone(fs::remove_file(&path)).file("remove", &path)?;
        }
        Ok(())
    }

    pub fn write_out(&self, id: &GenerationId) -> Result<()> {
        directory::write_out(&self.directory(id).join(RAM))
    }

    /// Puts everything of a generation on the disk below.
    pub fn sync(&self, id: &GenerationId) -> Result<()> {
        let directory = self.directory(id);
        for name in [STATE, DISK, RAM, MANIFEST] {
            let path = directory.join(name);
            if path.exists() {
                File::open(&path).and_then(|file| file.sync_data()).file("sync", &path)?;
            }
        }
        sync(&directory)?;
        sync(&self.place)
    }

    pub fn remove(&self, id: &GenerationId) -> Result<()> {
        let hidden = self.place.join(format!("{REMOVING}{id}"));
        gone(fs::rename(self.directory(id), &hidden)).file("hide", &hidden)?;
        gone(fs::remove_dir_all(&hidden)).file("remove", &hidden)
    }

    pub fn read_manifest(&self, id: &GenerationId) -> Result<Vec<u8>> {
        let path = self.directory(id).join(MANIFEST);
        fs::read(&path).file("read", path)
    }

    /// What its files occupy, and what of that nobody shares: removing it would
    /// give that back. A filesystem that does not tell is taken to share nothing.
    pub fn occupied(&self, id: &GenerationId) -> Occupied {
        let directory = self.directory(id);
        let all = directory::occupied([RAM, DISK, STATE, MANIFEST].map(|name| directory.join(name)));
        Occupied { all, own: extents::own(&directory).map_or(all, ByteSize) }
    }

    pub fn survey(&self) -> Result<Found> {
        let mut found = Found::default();
        for entry in fs::read_dir(&self.place).file("list", &self.place)? {
            let entry = entry.file("list", &self.place)?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(REMOVING) {
                fs::remove_dir_all(entry.path()).file("remove", entry.path())?;
            } else if let Some(id) = name.strip_prefix(MAKING) {
                found.making.extend(id.parse::<GenerationId>());
            } else if let Ok(id) = name.parse::<GenerationId>() {
                self.finish_parting(&id)?;
                let manifest = self.read_manifest(&id).unwrap_or_default();
                found.whole.push((id, manifest));
            }
        }
        Ok(found)
    }
}

/// The device state's size and checksum.
pub fn fingerprint(directory: &Path) -> Result<(u64, String)> {
    let path = directory.join(STATE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, String::new())),
        Err(error) => return Err(error).file("read", path),
    };
    let digest = Sha256::digest(&bytes);
    Ok((bytes.len() as u64, digest.iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// What a hypervisor reads of a machine before it answers. A clone has nothing in memory,
/// and behind the RAM that is read ahead it would wait.
pub fn warm(machine: &Path) -> Result<()> {
    [DISK, STATE].iter().try_for_each(|name| warm_file(&machine.join(name)))
}

/// How a file begins, into memory. One that is not there is not missed.
fn warm_file(path: &Path) -> Result<()> {
    let read = File::open(path).and_then(|mut file| file.read(&mut vec![0; WARM]));
    gone(read.map(drop)).file("read", path)
}

pub(super) fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
