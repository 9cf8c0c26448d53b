//! The archive: which generations there are, whose, and who still needs them.
//!
//! Manifests are signed (`format`). What does not verify, or whose device state is not what
//! was signed, is never resumed.

mod index;
mod retention;

use crate::{
    error::Result,
    format::{Kind, Signer},
    lost::Lost,
    storage::{Found, Generations, Occupied, Undone, Way, blocking, fingerprint},
};
use berth_types::{
    BootId, Code, Generation, GenerationId, LostKind, Machine, MachineId, Point, Refusal, Unknown, Why,
};
use index::Index;
use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

pub struct Archive {
    files: Generations,
    signer: Signer,
    index: Arc<RwLock<Index>>,
    /// How many automatic generations of one machine are kept.
    keep: usize,
    /// The host's boot in which hostd runs.
    boot: BootId,
    /// Read by whoever syncs a generation.
    syncing: Arc<tokio::sync::RwLock<()>>,
}

impl Archive {
    pub fn open(files: Generations, signer: Signer, keep: u32, boot: BootId) -> Self {
        let (index, keep, syncing) = (Arc::default(), keep as usize, Arc::default());
        Self { files, signer, index, keep, boot, syncing }
    }

    fn index(&self) -> std::sync::RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> std::sync::RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what is there after a start. `machine` tells where a machine's
    /// files are, for generations that were not finished. What cannot be used is
    /// returned with the reason: a machine may sleep in it all the same.
    pub fn load(
        &self,
        lost: &Lost,
        machine: impl Fn(&MachineId) -> PathBuf,
    ) -> Result<Vec<(GenerationId, String)>> {
        let Found { whole, making } = self.files.survey()?;
        for id in making {
            if let Err(error) = self.undo_unfinished(&id, lost, &machine) {
                tracing::error!(generation = %id, error = error.chain(), "cannot undo it; left alone");
            }
        }
        let mut unusable = Vec::new();
        for (id, manifest) in whole {
            match manifest.and_then(|manifest| self.decode(&manifest)) {
                Ok(generation) if generation.id == id => {
                    let synced = self.files.is_synced(&id);
                    self.add(Arc::new(generation), synced);
                }
                Ok(_) => unusable.push((id, "its manifest is another's".to_owned())),
                Err(error) => unusable.push((id, error.chain())),
            }
        }
        Ok(unusable)
    }

    /// The files of a generation that was not finished go back to the machine that they are
    /// of. Those that the manifest does not tell of are moved aside.
    fn undo_unfinished(
        &self,
        id: &GenerationId,
        lost: &Lost,
        machine: impl Fn(&MachineId) -> PathBuf,
    ) -> Result<()> {
        let Some(files) = self.files.unfinished_files(id) else { return self.files.drop_unfinished(id) };
        let manifest = self.files.unfinished_manifest(id).ok_or_else(|| damaged("it has no manifest").into());
        let undone = match manifest.and_then(|bytes| self.decode(&bytes)) {
            Ok(Generation { why: Why::Template { .. }, .. }) => {
                tracing::info!(generation = %id, "undoing a template that was not finished");
                return self.files.drop_unfinished(id);
            }
            Ok(Generation { machine: Some(owner), .. }) => {
                tracing::info!(generation = %id, machine = %owner, "undoing a generation that was not finished");
                match self.files.put_back(id, &machine(&owner))? {
                    Undone::Gone => return Ok(()),
                    Undone::Left(_) => format!("it was not finished, and its machine {owner} is not there"),
                }
            }
            Ok(Generation { machine: None, .. }) => "it was not finished, and is no machine's".to_owned(),
            Err(error) => format!("it was not finished: {}", error.chain()),
        };
        lost.put(LostKind::Snapshot, id.as_str(), &files, &undone).map(drop)
    }

    /// Moves one aside that cannot be used and that no machine sleeps in.
    pub fn move_aside(&self, id: &GenerationId, lost: &Lost, reason: &str) -> Result<()> {
        lost.put(LostKind::Snapshot, id.as_str(), &self.files.directory(id), reason).map(drop)
    }

    fn add(&self, generation: Arc<Generation>, synced: bool) {
        let mut index = self.index_mut();
        // An earlier version did not say when it froze one, nor whether that was synced.
        match &generation.boot {
            _ if synced => {}
            Some(boot) if *boot != self.boot => drop(index.torn.insert(generation.id.clone())),
            _ => drop(index.unsynced.insert(generation.id.clone())),
        }
        if let Some(machine) = &generation.machine {
            let key = (generation.created, generation.id.clone());
            index.machines.entry(machine.clone()).or_default().insert(key, generation.clone());
        }
        index.all.insert(generation.id.clone(), generation);
    }

    /// Freezes a machine's files. `manifest` says everything but the device
    /// state's checksum, which is taken here.
    pub async fn freeze(&self, mut manifest: Generation, from: PathBuf, way: Way) -> Result<Arc<Generation>> {
        let files = self.files.clone();
        let (size, sum) = blocking({
            let from = from.clone();
            move || fingerprint(&from)
        })
        .await?;
        (manifest.state_size, manifest.state_sha256) = (size, sum);
        manifest.boot.get_or_insert_with(|| self.boot.clone());
        let bytes = self.signer.sign(Kind::Snapshot, &manifest)?;
        let id = manifest.id.clone();
        blocking(move || files.freeze(&id, &from, way, &bytes)).await?;
        let generation = Arc::new(manifest);
        self.add(generation.clone(), false);
        Ok(generation)
    }

    /// Another generation of what one already holds, written by whoever wrote that.
    pub async fn copy(&self, from: &GenerationId, mut manifest: Generation) -> Result<Arc<Generation>> {
        if let Some(source) = self.get(from) {
            manifest.driver.clone_from(&source.driver);
            manifest.driver_version.clone_from(&source.driver_version);
            manifest.guest = source.guest;
            // What is torn is torn in every copy.
            manifest.boot = source.boot.clone().filter(|_| self.is_torn(from));
            manifest.unknown.clone_from(&source.unknown);
        }
        self.freeze(manifest, self.files.directory(from), Way::Share).await
    }

    /// Lays out a generation for a machine, but for its memory, if it verifies and
    /// this driver can resume it; says why it cannot otherwise.
    pub async fn thaw(&self, id: &GenerationId, machine: &Machine, directory: PathBuf) -> Result<()> {
        self.verify_whole(id).await?;
        if self.is_torn(id) {
            return Err(damaged(TORN).into());
        }
        let own = self.is_own(id, machine);
        let (files, id, uid) = (self.files.clone(), id.clone(), machine.uid);
        blocking(move || files.thaw(&id, &directory, uid, own)).await
    }

    /// The rest of it, before the machine's state is loaded.
    pub async fn part(&self, id: &GenerationId, machine: &Machine, directory: PathBuf) -> Result<()> {
        let own = self.is_own(id, machine);
        let (files, id) = (self.files.clone(), id.clone());
        blocking(move || if own { files.part(&id) } else { files.fill_ram(&id, &directory) }).await
    }

    fn is_own(&self, id: &GenerationId, machine: &Machine) -> bool {
        self.get(id).is_some_and(|one| one.machine.as_ref() == Some(&machine.id))
    }

    /// Is it as it was signed, its device state included?
    pub async fn verify_whole(&self, id: &GenerationId) -> Result<()> {
        let (files, id, expected) = (self.files.clone(), id.clone(), self.verify(id)?);
        blocking(move || {
            let (size, sum) = fingerprint(&files.directory(&id))?;
            if (size, &sum) == (expected.state_size, &expected.state_sha256) {
                Ok(())
            } else {
                Err(damaged("its device state is not what was saved").into())
            }
        })
        .await
    }

    pub async fn thaw_disk(&self, id: &GenerationId, machine: PathBuf, uid: u32) -> Result<()> {
        let (files, id) = (self.files.clone(), id.clone());
        blocking(move || files.thaw_disk(&id, &machine, uid)).await
    }

    /// The manifest as it is on disk now, its signature checked.
    fn verify(&self, id: &GenerationId) -> Result<Generation> {
        let generation = self.decode(&self.files.read_manifest(id)?)?;
        if generation.id == *id { Ok(generation) } else { Err(damaged("its manifest is another's").into()) }
    }

    /// Has everything there that its machine's next wake would wait for. It can do without.
    pub async fn prepare(&self, id: &GenerationId) {
        let (files, own) = (self.files.clone(), id.clone());
        if let Err(error) = blocking(move || files.prepare(&own)).await {
            tracing::debug!(generation = %id, error = error.chain(), "a wake will have to clone its memory");
        }
    }

    pub fn write_out_later(&self, id: &GenerationId) {
        let (files, id) = (self.files.clone(), id.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = files.write_out(&id) {
                tracing::debug!(generation = %id, error = error.chain(), "its memory is not written out");
            }
        });
    }

    /// On the disk below when it returns.
    pub async fn sync(&self, id: &GenerationId) -> Result<()> {
        let sync = self.syncs(id);
        blocking(sync).await
    }

    fn syncs(&self, id: &GenerationId) -> impl FnOnce() -> Result<()> + Send + 'static {
        let (files, index, id) = (self.files.clone(), self.index.clone(), id.clone());
        let torn = self.is_torn(&id);
        move || {
            files.sync(&id, !torn)?;
            index.write().unwrap_or_else(PoisonError::into_inner).unsynced.remove(&id);
            Ok(())
        }
    }

    /// Whether the host went down before all of it was on the disk below.
    pub fn is_torn(&self, id: &GenerationId) -> bool {
        self.index().torn.contains(id)
    }

    /// Everything that is to outlive the host is on the disk below when this returns.
    pub async fn sync_all(&self) {
        let unsynced: Vec<_> = self.index().unsynced.iter().cloned().collect();
        for id in unsynced {
            if let Err(error) = self.sync(&id).await {
                tracing::warn!(generation = %id, error = error.chain(), "cannot sync a generation");
            }
        }
    }

    pub fn sync_later(&self, id: &GenerationId) {
        let (sync, id) = (self.syncs(id), id.clone());
        let turn = self.syncing.clone().try_read_owned();
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            if let Err(error) = sync() {
                // Removed meanwhile, most likely.
                tracing::debug!(generation = %id, error = error.chain(), "cannot sync a generation");
            }
        });
    }

    /// Returns when nothing is being synced any more: a pool can be unmounted.
    pub async fn synced(&self) {
        let _all = self.syncing.write().await;
    }

    pub fn get(&self, id: &GenerationId) -> Option<Arc<Generation>> {
        self.index().all.get(id).cloned()
    }

    /// A machine's generations, newest first.
    pub fn of(&self, machine: &MachineId) -> Vec<Arc<Generation>> {
        self.index().of(machine).cloned().collect()
    }

    pub fn point(&self, machine: &MachineId, point: &Point) -> Result<Arc<Generation>, Refusal> {
        self.index().point(machine, point)
    }

    /// A point in time that from here on stays, until it is released: found and
    /// held in one step, so that nobody removes it in between.
    pub fn hold_point(&self, machine: &MachineId, point: &Point) -> Result<Arc<Generation>, Refusal> {
        let mut index = self.index_mut();
        let generation = index.point(machine, point)?;
        index.hold(&generation.id);
        Ok(generation)
    }

    /// A user's, of all machines and none.
    pub fn owned_by(&self, user: &berth_types::UserId) -> Vec<Arc<Generation>> {
        self.index().all.values().filter(|one| one.owner.as_ref() == Some(user)).cloned().collect()
    }

    /// Of those that fit, the one with the largest disk: the least is left to grow.
    pub fn template(&self, fits: impl Fn(&Generation, &str) -> bool) -> Option<Arc<Generation>> {
        let index = self.index();
        let fitting = |one: &&Arc<Generation>| matches!(&one.why, Why::Template { version } if fits(one, version) && !index.torn.contains(&one.id));
        index.all.values().filter(fitting).max_by_key(|one| one.disk).cloned()
    }

    pub fn templates(&self) -> Vec<Arc<Generation>> {
        let index = self.index();
        index.all.values().filter(|one| matches!(one.why, Why::Template { .. })).cloned().collect()
    }

    pub async fn occupied(&self, id: &GenerationId) -> Result<Occupied> {
        let (files, id) = (self.files.clone(), id.clone());
        blocking(move || Ok(files.occupied(&id))).await
    }

    /// Someone sleeps in it: it stays.
    pub fn hold(&self, id: &GenerationId) {
        self.index_mut().hold(id);
    }

    pub fn is_held(&self, id: &GenerationId) -> bool {
        self.index().holds.contains_key(id)
    }

    fn decode(&self, bytes: &[u8]) -> Result<Generation> {
        let read = self.signer.read(Kind::Snapshot, bytes);
        read.map_err(|unreadable| damaged(&format!("its manifest: {unreadable}")).into())
    }
}

/// A manifest for a machine as it is now, but for the device state.
pub fn manifest(machine: &Machine, why: Why, driver: &dyn berth_hypervisor::Driver) -> Generation {
    Generation {
        id: GenerationId::random(),
        why,
        machine: Some(machine.id.clone()),
        owner: Some(machine.owner.clone()),
        name: machine.name.clone(),
        created: jiff::Timestamp::now(),
        image: machine.image.clone(),
        cpus: machine.cpus,
        memory: machine.memory,
        disk: machine.disk,
        driver: driver.name().to_owned(),
        driver_version: driver.version().to_owned(),
        state_size: 0,
        state_sha256: String::new(),
        boot: None,
        guest: None,
        unknown: Unknown::new(),
    }
}

/// Why memory is not resumed although all that is signed of it verifies.
pub const TORN: &str = "the host went down before it was on the disk";

fn damaged(what: &str) -> Refusal {
    Refusal::new(Code::Failed, format!("that point in time cannot be used: {what}"), "choose another one")
}
