//! A machine and the generation that it slept in part.
//!
//! Whose own sleep it was wakes on the very file that its RAM was, which is warm, and
//! leaves the generation a clone. To clone a memory takes the longer the more often
//! it has been captured (10 to 20 µs for each of some thousand extents), and a wake
//! would wait for it. So the clone is made when the machine has gone to sleep, and
//! parting is a rename.
//!
//! ```text
//!   asleep         ram (warm)  ram.clone
//!   thawed         ram (warm), linked into the machine's directory  ram.clone
//!   parted         ram (what was ram.clone); the machine has the warm one alone
//! ```

use super::{
    directory::{self, RAM, clone},
    generation::{Generations, create, files, open},
};
use crate::{
    error::{FileContext, Result},
    fault,
};
use berth_sys::{Access, machine::Files};
use berth_types::GenerationId;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak},
};

/// A clone of RAM, whole, that will take its place.
const CLONE: &str = "ram.clone";
/// One that is being made.
const HALF: &str = "ram.half";

/// Who works in a directory.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Several who read, or one who parts.
    files: RwLock<()>,
    /// One of those who read.
    cloning: Mutex<()>,
}

impl Turn {
    pub(super) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.files.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn for every directory in which somebody works.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<HashMap<PathBuf, Weak<Turn>>>>);

impl Turns {
    pub(super) fn at(&self, directory: &Path) -> Arc<Turn> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = all.get(directory).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        all.insert(directory.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

impl Generations {
    /// Has the clone there before its machine wakes. Without it a wake makes it.
    pub fn prepare(&self, id: &GenerationId) -> Result<()> {
        let directory = self.directory(id);
        let turn = self.turns.at(&directory);
        // It may be thawed meanwhile; it parts afterwards.
        let _others = turn.read();
        let _once = turn.cloning.lock().unwrap_or_else(PoisonError::into_inner);
        let own = files(&directory)?;
        // Who shares it is about to part, and may run in the next moment.
        if !own.has(RAM) || is_shared(&own) || own.has(CLONE) {
            return Ok(());
        }
        make(&own)
    }

    /// Leaves the RAM that a generation shares with its machine to the machine
    /// alone, and a clone of it to the generation. Nothing may run before. Cut
    /// short by a crash, it is done at the next start.
    pub fn part(&self, id: &GenerationId) -> Result<()> {
        let directory = self.directory(id);
        let turn = self.turns.at(&directory);
        let _alone = turn.files.write().unwrap_or_else(PoisonError::into_inner);
        let own = files(&directory)?;
        if !is_shared(&own) {
            return Ok(());
        }
        if !own.has(CLONE) {
            make(&own)?;
        }
        own.rename(CLONE, &own, RAM).file("leave", directory.join(RAM))
    }

    /// What a crash left of either.
    pub(super) fn finish_parting(&self, id: &GenerationId) -> Result<()> {
        let directory = self.directory(id);
        files(&directory)?.remove(HALF).file("remove", directory.join(HALF))?;
        self.part(id)
    }
}

fn make(own: &Files) -> Result<()> {
    let ram = open(own, RAM, Access::Read)?;
    // A clone would have it written out first, and keep who reads the file waiting.
    directory::write_out(&ram).file("write out", own.path().join(RAM))?;
    let made = create(own, HALF).and_then(|half| {
        clone(&ram, &half).file("clone", own.path().join(RAM))?;
        fault::point("sleep.cloned");
        own.rename(HALF, own, CLONE).file("publish", own.path().join(CLONE))
    });
    if made.is_err() {
        own.remove(HALF).file("remove", own.path().join(HALF))?;
    }
    made
}

/// A machine's directory has it as well.
fn is_shared(own: &Files) -> bool {
    own.look(RAM).ok().flatten().is_some_and(|found| found.st_nlink > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{
        directory::{DISK, STATE},
        generation::MANIFEST,
    };
    use std::{fs, os::unix::fs::MetadataExt as _};

    /// A pool of its own with one generation in it, and a machine's directory.
    struct Pool(PathBuf, Generations, GenerationId);

    impl Pool {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("berth-parting-{name}-{}", std::process::id()));
            let (generations, id) = (Generations::open(&path).unwrap(), GenerationId::random());
            fs::create_dir_all(generations.directory(&id)).unwrap();
            for (name, text) in [(DISK, "disk"), (RAM, "ram"), (STATE, "state"), (MANIFEST, "{}")] {
                fs::write(generations.directory(&id).join(name), text).unwrap();
            }
            fs::create_dir_all(path.join("machine")).unwrap();
            Self(path, generations, id)
        }

        fn inode(&self, path: PathBuf) -> u64 {
            fs::metadata(path).unwrap().ino()
        }
    }

    impl Drop for Pool {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn own_id() -> u32 {
        rustix::process::getuid().as_raw()
    }

    #[test]
    fn whose_sleep_it_was_gets_the_very_file() {
        let pool = Pool::new("own");
        let Pool(path, generations, id) = &pool;
        let (kept, machine) = (generations.directory(id).join(RAM), path.join("machine"));
        let warm = pool.inode(kept.clone());
        generations.thaw(id, &machine, own_id(), true).unwrap();
        generations.part(id).unwrap();
        assert_eq!(pool.inode(machine.join(RAM)), warm);
        assert_ne!(pool.inode(kept.clone()), warm);
        fs::write(machine.join(RAM), "gone on").unwrap();
        assert_eq!(fs::read_to_string(kept).unwrap(), "ram");
        // Anybody else has a clone, in a file that a hypervisor may have open.
        generations.thaw(id, &machine, own_id(), false).unwrap();
        let open = pool.inode(machine.join(RAM));
        assert_eq!(fs::read(machine.join(RAM)).unwrap(), [0; 3]);
        generations.fill_ram(id, &machine).unwrap();
        assert_eq!(pool.inode(machine.join(RAM)), open);
        assert_eq!(fs::read_to_string(machine.join(RAM)).unwrap(), "ram");
    }

    #[test]
    fn what_parts_twice_or_never_shared_stays_as_it_is() {
        let pool = Pool::new("twice");
        let Pool(path, generations, id) = &pool;
        let kept = generations.directory(id).join(RAM);
        let before = pool.inode(kept.clone());
        generations.part(id).unwrap();
        assert_eq!(pool.inode(kept.clone()), before);
        generations.thaw(id, &path.join("machine"), own_id(), true).unwrap();
        generations.part(id).unwrap();
        let parted = pool.inode(kept.clone());
        generations.part(id).unwrap();
        assert_eq!(pool.inode(kept), parted);
    }

    #[test]
    fn a_parting_that_was_cut_short_is_finished() {
        let pool = Pool::new("cut");
        let Pool(path, generations, id) = &pool;
        let (kept, machine) = (generations.directory(id).join(RAM), path.join("machine"));
        generations.thaw(id, &machine, own_id(), true).unwrap();
        let half = kept.with_file_name(HALF);
        fs::write(&half, "ra").unwrap();
        assert_eq!(generations.survey().unwrap().whole.len(), 1);
        assert!(!half.exists() && !kept.with_file_name(CLONE).exists());
        // What runs on must not write into the past.
        fs::write(machine.join(RAM), "gone on").unwrap();
        assert_eq!(fs::read_to_string(kept).unwrap(), "ram");
    }

    #[test]
    fn a_clone_that_was_made_before_is_what_stays() {
        let pool = Pool::new("before");
        let Pool(path, generations, id) = &pool;
        let (kept, machine) = (generations.directory(id).join(RAM), path.join("machine"));
        let before = generations.occupied(id).all;
        generations.prepare(id).unwrap();
        let clone = pool.inode(kept.with_file_name(CLONE));
        assert_eq!(generations.occupied(id).all, before, "it takes no room of its own");
        // Once is enough, also for a service that starts anew.
        generations.prepare(id).unwrap();
        generations.survey().unwrap();
        let warm = pool.inode(kept.clone());
        generations.thaw(id, &machine, own_id(), true).unwrap();
        generations.part(id).unwrap();
        assert_eq!(pool.inode(kept.clone()), clone);
        assert_eq!(pool.inode(machine.join(RAM)), warm);
        assert!(!kept.with_file_name(CLONE).exists());
        assert_eq!(fs::read_to_string(kept).unwrap(), "ram");
    }

    #[test]
    fn none_is_made_of_what_a_machine_may_be_about_to_run_on() {
        let pool = Pool::new("late");
        let Pool(path, generations, id) = &pool;
        generations.thaw(id, &path.join("machine"), own_id(), true).unwrap();
        generations.prepare(id).unwrap();
        assert!(!generations.directory(id).join(CLONE).exists());
    }

    #[test]
    fn a_turn_is_the_same_for_as_long_as_somebody_has_it() {
        let turns = Turns::default();
        let (here, there) = (Path::new("/here"), Path::new("/there"));
        let turn = turns.at(here);
        let alone = turn.files.write().unwrap();
        assert!(turns.at(here).files.try_read().is_err());
        assert!(turns.at(there).files.try_write().is_ok());
        drop(alone);
        assert!(turns.at(here).files.try_write().is_ok());
        drop(turn);
        turns.at(there);
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
