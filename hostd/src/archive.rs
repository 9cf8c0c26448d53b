//! The archive: which generations there are, whose, and who still needs them.
//!
//! Manifests are signed with a key of this installation. What does not verify,
//! or whose device state is not what was signed, is never resumed.

use crate::{
    error::{Error, Result},
    keyfile,
    lost::Lost,
    mirror::{hex, unhex},
    storage::{Found, Generations, Occupied, Undone, Way, blocking, fingerprint},
};
use berth_types::{
    BootId, Code, Generation, GenerationId, LostKind, Machine, MachineId, Point, Refusal, Why,
};
use ed25519_dalek::{Signature, Signer, SigningKey};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

pub struct Archive {
    files: Generations,
    key: SigningKey,
    index: Arc<RwLock<Index>>,
    /// How many automatic generations of one machine are kept.
    keep: usize,
    /// The host's boot in which hostd runs.
    boot: BootId,
    /// Read by whoever syncs a generation.
    syncing: Arc<tokio::sync::RwLock<()>>,
}

#[derive(Default)]
struct Index {
    all: HashMap<GenerationId, Arc<Generation>>,
    /// Oldest first.
    machines: HashMap<MachineId, BTreeMap<(jiff::Timestamp, GenerationId), Arc<Generation>>>,
    /// Machines that sleep in one, and children about to.
    holds: HashMap<GenerationId, u32>,
    /// Not on the disk below yet: whole only as long as the host is up.
    unsynced: HashSet<GenerationId>,
    /// Those that were not when the host went down: of their memory, any part may be missing.
    torn: HashSet<GenerationId>,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    generation: Generation,
    signature: String,
}

impl Archive {
    pub fn open(files: Generations, key: &Path, keep: u32, boot: BootId) -> Result<Self> {
        let key = SigningKey::from_bytes(&*keyfile::key(key)?);
        let (index, keep, syncing) = (Arc::default(), keep as usize, Arc::default());
        Ok(Self { files, key, index, keep, boot, syncing })
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
        let bytes = self.encode(&manifest)?;
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

    /// Nobody does any more, perhaps; what nobody needs then goes.
    pub async fn release(&self, id: &GenerationId) {
        self.let_go(id);
        self.age_like(id).await;
    }

    /// The same, but nothing goes before its machine's are aged.
    pub fn let_go(&self, id: &GenerationId) {
        let mut index = self.index_mut();
        if let Some(count) = index.holds.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                index.holds.remove(id);
            }
        }
    }

    /// Lets go of what is outdated of the machine whose this is.
    pub async fn age_like(&self, id: &GenerationId) {
        if let Some(machine) = self.get(id).and_then(|generation| generation.machine.clone()) {
            self.age(&machine).await;
        }
    }

    /// Lets go of what policy keeps no longer.
    pub async fn age(&self, machine: &MachineId) {
        let mut automatic = 0;
        for generation in self.of(machine) {
            let outdated = match generation.why {
                Why::Sleep | Why::Restore => {
                    automatic += 1;
                    automatic > self.keep
                }
                Why::Fork => true,
                Why::Snapshot(_) | Why::Template { .. } => false,
            };
            if outdated {
                self.forget(&generation.id).await;
            }
        }
    }

    /// Everything of a machine that is gone, but what its children still sleep in.
    pub async fn forget_machine(&self, machine: &MachineId) {
        for generation in self.of(machine) {
            self.forget(&generation.id).await;
        }
    }

    /// What a crash left that nobody needs: captures for forks, and points in
    /// time of machines that are gone.
    pub async fn sweep(&self, exists: impl Fn(&MachineId) -> bool) {
        let all: Vec<_> = self.index().all.values().cloned().collect();
        for generation in all {
            let Some(machine) = &generation.machine else { continue };
            let orphan = generation.why == Why::Fork || !exists(machine);
            if orphan {
                self.forget(&generation.id).await;
            }
        }
    }

    pub async fn remove(&self, id: &GenerationId) -> Result<()> {
        if self.forget(id).await {
            return Ok(());
        }
        let hint = "wake it first, then try again";
        Err(Refusal::new(Code::Conflict, "a machine sleeps in that point in time", hint).into())
    }

    /// Removes what nobody holds. False: somebody does.
    async fn forget(&self, id: &GenerationId) -> bool {
        if !self.index_mut().take_out(id) {
            return false;
        }
        let (files, id) = (self.files.clone(), id.clone());
        if let Err(error) = blocking(move || files.remove(&id)).await {
            tracing::error!(error = error.chain(), "cannot remove a generation");
        }
        true
    }

    fn encode(&self, generation: &Generation) -> Result<Vec<u8>> {
        let record = |source| Error::Record { what: "a generation", source };
        let signed = serde_json::to_vec(generation).map_err(record)?;
        let signature = hex(&self.key.sign(&signed).to_bytes());
        serde_json::to_vec_pretty(&Manifest { generation: generation.clone(), signature }).map_err(record)
    }

    fn decode(&self, bytes: &[u8]) -> Result<Generation> {
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|_| damaged("its manifest does not decode"))?;
        let signed = serde_json::to_vec(&manifest.generation)
            .map_err(|source| Error::Record { what: "a generation", source })?;
        let signature = unhex(&manifest.signature).and_then(|bytes| Signature::from_slice(&bytes).ok());
        let verifies = signature.is_some_and(|signature| self.key.verify(&signed, &signature).is_ok());
        if verifies {
            Ok(manifest.generation)
        } else {
            Err(damaged("its manifest is not signed by this host").into())
        }
    }
}

impl Index {
    fn hold(&mut self, id: &GenerationId) {
        *self.holds.entry(id.clone()).or_default() += 1;
    }

    /// Newest first.
    fn of(&self, machine: &MachineId) -> impl Iterator<Item = &Arc<Generation>> {
        self.machines.get(machine).into_iter().flat_map(|all| all.values().rev())
    }

    fn point(&self, machine: &MachineId, point: &Point) -> Result<Arc<Generation>, Refusal> {
        let mut all = self.of(machine);
        let found = match point {
            Point::Label(label) => all.find(|one| matches!(&one.why, Why::Snapshot(own) if own == label)),
            Point::Automatic(place) => {
                all.filter(|one| one.why.is_automatic()).nth((*place as usize).saturating_sub(1))
            }
        };
        found.cloned().ok_or_else(|| {
            Refusal::new(Code::NotFound, format!("there is no '{point}'"), "see them with 'snapshots NAME'")
        })
    }

    fn take_out(&mut self, id: &GenerationId) -> bool {
        if self.holds.contains_key(id) {
            return false;
        }
        self.unsynced.remove(id);
        if let Some(generation) = self.all.remove(id)
            && let Some(machine) = &generation.machine
            && let Some(all) = self.machines.get_mut(machine)
        {
            all.remove(&(generation.created, id.clone()));
        }
        true
    }
}

/// A manifest for a machine as it is now, but for the device state.
pub fn manifest(machine: &Machine, why: Why, driver: &dyn berth_hypervisor::Driver) -> Generation {
    Generation {
        generation: berth_types::RECORD_GENERATION,
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
    }
}

/// Why memory is not resumed although all that is signed of it verifies.
pub const TORN: &str = "the host went down before it was on the disk";

fn damaged(what: &str) -> Refusal {
    Refusal::new(Code::Failed, format!("that point in time cannot be used: {what}"), "choose another one")
}
