//! Storage: a pool with reflinks, and a directory in it for every machine.

mod ahead;
mod awake;
mod directory;
mod early;
mod extents;
mod generation;
mod parting;
mod pool;
mod takeover;

pub use directory::{Found as FoundMachine, Survey, replace, sync as sync_directory};
pub use early::{Busy, Early};
pub use generation::{Found, Generations, Occupied, Undone, Way, fingerprint};
pub use pool::Space;

use crate::{
    error::{FileContext, IoContext, Result, pool_full},
    format::{Kind, Signer},
    lost::Lost,
    private::{make_closed, make_tight},
};
use berth_config::Config;
use berth_sys::{Access, Directory, machine::Files, private::PASSABLE};
use berth_types::{BootId, ByteSize, GenerationId, Machine, MachineId, Refusal};
use directory::{DISK, MAKING, RAM, REMOVING, STATE};
use generation::{files, open};
use std::path::{Path, PathBuf};

/// Copies of images' disks, in the pool.
const IMAGES: &str = "images";

#[derive(Debug)]
pub struct Storage {
    pool: pool::Pool,
    machines: PathBuf,
    generations: Generations,
    images: PathBuf,
    kernel: PathBuf,
    reserve: ByteSize,
    signer: Signer,
    boot: BootId,
}

/// What is left of a machine in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Has {
    pub disk: bool,
    /// RAM, and device state to go with it.
    pub memory: bool,
}

/// What an image brings to a start.
#[derive(Clone, Debug)]
pub struct ImageFiles {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub disk: PathBuf,
}

impl Storage {
    /// Opens the pool, and makes it first where there is none.
    pub async fn open(config: &Config, signer: Signer, boot: BootId) -> Result<Self> {
        let pool = pool::Pool::open(&config.service.data, config.host.pool_size).await?;
        let machines = pool.path().join("machines");
        make_tight(&machines, PASSABLE)?;
        takeover::take_over(&machines)?;
        let images = pool.path().join(IMAGES);
        make_closed(&images)?;
        directory::forget_imports(&images);
        let generations = Generations::open(pool.path())?;
        Ok(Self {
            pool,
            machines,
            generations,
            images: config.image.directory.clone(),
            kernel: config.image.kernel.clone(),
            reserve: config.host.pool_reserve,
            signer,
            boot,
        })
    }

    /// A pool without a mount, on whatever filesystem tests run on.
    #[cfg(test)]
    pub fn plain(config: &Config, signer: Signer, boot: BootId) -> Self {
        let pool = pool::Pool::plain(config.service.data.join("pool"));
        let machines = pool.path().join("machines");
        std::fs::create_dir_all(&machines).unwrap();
        takeover::take_over(&machines).unwrap();
        let (images, kernel) = (config.image.directory.clone(), PathBuf::new());
        let generations = Generations::open(pool.path()).unwrap();
        Self { pool, machines, generations, images, kernel, reserve: config.host.pool_reserve, signer, boot }
    }

    pub fn pool(&self) -> &Path {
        self.pool.path()
    }

    pub fn directory(&self, id: &MachineId) -> PathBuf {
        self.machines.join(id.as_str())
    }

    /// Is there anything of this machine, whole or half-made? What cannot be looked at may
    /// be there.
    pub fn has_directory(&self, id: &MachineId) -> bool {
        let making = self.machines.join(format!("{MAKING}{id}"));
        [self.directory(id), making].iter().any(|path| match path.symlink_metadata() {
            Ok(_) => true,
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        })
    }

    /// Where all machines are. Opened for each use: a pool can be unmounted only while
    /// nothing in it is open.
    fn all(&self) -> Result<Directory> {
        Directory::open(&self.machines).file("open", &self.machines)
    }

    fn files(&self, id: &MachineId) -> std::io::Result<Files> {
        Files::open(&self.directory(id))
    }

    /// The host's boot in which hostd runs.
    pub fn boot(&self) -> &BootId {
        &self.boot
    }

    pub fn generations(&self) -> &Generations {
        &self.generations
    }

    pub fn machines(&self) -> &Path {
        &self.machines
    }

    pub fn space(&self) -> Result<Space> {
        self.pool.space()
    }

    /// Refuses new work when the pool is nearly full. `need` is what the work
    /// itself takes at once.
    pub fn admit(&self, need: ByteSize) -> Result<(), Refusal> {
        let space = self.space()?;
        if space.free.bytes() < self.reserve.bytes().saturating_add(need.bytes()) {
            return Err(pool_full());
        }
        Ok(())
    }

    /// The same for a machine that is there already: snapshots and new machines leave it
    /// the whole reserve, of which it may use three quarters. In the last quarter whoever
    /// writes most is held. `need` is what a boot takes at once; a wake takes nothing.
    pub fn admit_existing(&self, need: ByteSize) -> Result<(), Refusal> {
        let least = (self.reserve.bytes() / 4).saturating_add(need.bytes());
        if self.space()?.free.bytes() < least { Err(pool_full()) } else { Ok(()) }
    }

    /// The same for a machine that was held: it goes on with half the reserve, and
    /// whoever holds it again will.
    pub fn admit_held(&self) -> Result<(), Refusal> {
        if self.space()?.free.bytes() < self.reserve.bytes() / 2 { Err(pool_full()) } else { Ok(()) }
    }

    /// An image by name; `None` when there is none of that name.
    pub fn image(&self, name: &str) -> Option<ImageFiles> {
        let plain =
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if !plain || name.starts_with('.') {
            return None;
        }
        let directory = self.images.join(name);
        let own = directory.join("vmlinux");
        let kernel = if self.kernel.as_os_str().is_empty() { own } else { self.kernel.clone() };
        let files = ImageFiles { kernel, initrd: directory.join("initrd"), disk: directory.join("disk") };
        (files.kernel.exists() && files.initrd.exists() && files.disk.exists()).then_some(files)
    }

    /// Changes when the image does: what was booted from another is outdated.
    pub fn image_version(&self, name: &str) -> Option<String> {
        let files = self.image(name)?;
        let parts = [files.kernel, files.initrd, files.disk];
        parts
            .iter()
            .map(|path| directory::version(path).ok())
            .collect::<Option<Vec<_>>>()
            .map(|all| all.join("/"))
    }

    /// The size of a machine's disk as it is.
    pub fn disk_size(&self, id: &MachineId) -> ByteSize {
        let found = self.files(id).and_then(|files| files.look(DISK)).ok().flatten();
        ByteSize(found.map_or(0, |found| u64::try_from(found.st_size).unwrap_or(0)))
    }

    /// Which of a machine's files are there.
    pub fn has(&self, id: &MachineId) -> Has {
        let files = self.files(id);
        let there = |name| files.as_ref().is_ok_and(|files| files.has(name));
        Has { disk: there(DISK), memory: there(RAM) && there(STATE) }
    }

    /// Makes a machine's directory under a name that a crash leaves
    /// recognisable. Without an image it has no disk yet: it sleeps in a
    /// generation that has.
    pub async fn make(&self, machine: &Machine, image: Option<&ImageFiles>) -> Result<()> {
        let (machines, making) = (self.all()?, format!("{MAKING}{}", machine.id));
        let source = match image {
            Some(image) => Some(self.image_in_pool(&machine.image, &image.disk).await?),
            None => None,
        };
        let (machine, record) = (machine.clone(), self.signer.sign(Kind::Machine, machine)?);
        blocking(move || {
            let made = directory::fill(&machines, &making, &machine, &record, source.as_deref());
            if made.is_err() {
                let _ = machines.remove_all(&making);
            }
            made
        })
        .await
    }

    /// The disk of a machine that was moved aside, into a directory that is being made.
    pub async fn take_in(&self, files: &Path, machine: &Machine) -> Result<()> {
        let making = self.machines.join(format!("{MAKING}{}", machine.id));
        let (from, uid) = (files.to_owned(), machine.uid);
        blocking(move || directory::take_in(&from, &making, uid)).await
    }

    /// The same undone.
    pub async fn give_back(&self, files: &Path, id: &MachineId) -> Result<()> {
        let places = [self.directory(id), self.machines.join(format!("{MAKING}{id}"))];
        let to = files.to_owned();
        blocking(move || places.iter().try_for_each(|place| directory::take_in(place, &to, 0))).await
    }

    /// The machine is in the store now: its directory takes its own name. That reaches the
    /// disk below in the background; whoever has to know it asks for `sync_directories`.
    pub async fn publish(&self, id: &MachineId) -> Result<()> {
        let (machines, id) = (self.all()?, id.clone());
        blocking(move || {
            let (making, place) = (format!("{MAKING}{id}"), machines.path().join(id.as_str()));
            machines.rename(making, &machines, id.as_str()).file("publish", place)
        })
        .await?;
        let machines = self.machines.clone();
        tokio::task::spawn_blocking(move || directory::sync(&machines));
        Ok(())
    }

    /// All that were made and published are so for good.
    pub async fn sync_directories(&self) -> Result<()> {
        let machines = self.machines.clone();
        blocking(move || directory::sync(&machines)).await
    }

    /// Takes a directory out of sight at once and deletes it. Fine if it is gone.
    pub async fn remove(&self, id: &MachineId) -> Result<()> {
        let machines = self.all()?;
        let hidden = format!("{REMOVING}{id}");
        let places = [id.to_string(), format!("{MAKING}{id}")];
        blocking(move || {
            for place in places {
                let path = machines.path().join(&place);
                match machines.rename(&place, &machines, &hidden) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error).file("hide", path);
                    }
                    _ => machines.remove_all(&hidden).file("remove", path)?,
                }
            }
            Ok(())
        })
        .await
    }

    /// The record beside the machine, from which the store can be rebuilt.
    pub async fn mirror(&self, machine: &Machine) -> Result<()> {
        let (directory, record) = (self.directory(&machine.id), self.signer.sign(Kind::Machine, machine)?);
        blocking(move || directory::write_record(&files(&directory)?, &record)).await
    }

    /// What a point's disk has allocated, shared or not.
    pub fn point_disk(&self, id: &GenerationId) -> ByteSize {
        let files = Files::open(&self.generations.directory(id));
        ByteSize(files.map_or(0, |files| files.occupied(DISK)))
    }

    /// What a machine's disk occupies now, wherever it is.
    pub fn disk_used(&self, machine: &Machine) -> Option<ByteSize> {
        let asleep = machine.sleeps_in.as_ref().map(|id| self.generations.directory(id));
        let files = Files::open(&asleep.unwrap_or_else(|| self.directory(&machine.id))).ok()?;
        files.look(DISK).ok()?.map(|_| ByteSize(files.occupied(DISK)))
    }

    /// What a machine and points in time occupy together, what they share
    /// counted once. `None` where the pool's filesystem does not tell.
    pub async fn occupied(&self, id: &MachineId, points: &[GenerationId]) -> Option<ByteSize> {
        let mut places = vec![self.directory(id)];
        places.extend(points.iter().map(|point| self.generations.directory(point)));
        let sum = move || {
            let opened = places.iter().map(|place| Directory::open(place).file("open", place));
            let opened = opened.collect::<Result<Vec<_>>>()?;
            extents::together(&opened).during("measure a machine")
        };
        blocking(sum).await.ok().map(ByteSize)
    }

    /// The last `limit` bytes of the console; none, and a line in the log, if what is in
    /// its place is no console.
    pub async fn console(&self, id: &MachineId, limit: u64) -> String {
        let (directory, id) = (self.directory(id), id.clone());
        let read = move || directory::tail(&files(&directory)?, limit).file("read a console in", &directory);
        let bytes = blocking(read).await.unwrap_or_else(|error| {
            tracing::warn!(machine = %id, error = error.chain(), "its console cannot be read");
            Vec::new()
        });
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Writes RAM and disk out while the machine runs, twice: the second time
    /// there is little left, and a reflink finds next to nothing to flush.
    pub async fn presync(&self, id: &MachineId) -> Result<()> {
        let directory = self.directory(id);
        blocking(move || {
            let files = files(&directory)?;
            let both = [open(&files, RAM, Access::Read)?, open(&files, DISK, Access::Read)?];
            for file in [&both, &both].into_iter().flatten() {
                directory::write_out(file).file("write out", &directory)?;
            }
            Ok(())
        })
        .await
    }

    /// The same before a capture, and most of its memory cloned where that is worth it.
    pub async fn prepare_capture(&self, id: &MachineId, busy: Busy) -> Result<Option<Early>> {
        let (directory, id) = (self.directory(id), id.clone());
        blocking(move || {
            let files = files(&directory)?;
            let both = [open(&files, RAM, Access::Read)?, open(&files, DISK, Access::Read)?];
            let write_out =
                || both.iter().try_for_each(|file| directory::write_out(file).file("write out", &directory));
            write_out()?;
            let early = Early::of(&files, busy).unwrap_or_else(|error| {
                tracing::debug!(machine = %id, error = error.chain(), "its memory is not cloned ahead");
                None
            });
            write_out()?;
            Ok(early)
        })
        .await
    }

    /// Has what its hypervisor will wait for read in the background: before the memory.
    pub fn warm(&self, id: &MachineId) {
        let directory = self.directory(id);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = generation::warm(&directory) {
                tracing::debug!(error = error.chain(), "not read before it is needed");
            }
        });
    }

    /// Has a sleeping machine's memory read in the background, as far as a machine
    /// of this template needs it first. It can do without.
    pub fn read_ahead(&self, id: &MachineId, template: &GenerationId) {
        let memory = self.directory(id);
        let booted = self.generations.directory(template);
        tokio::task::spawn_blocking(move || {
            let read = || ahead::read(&Files::open(&memory)?, &Files::open(&booted)?);
            if let Err(error) = read() {
                tracing::debug!(%error, memory = %memory.display(), "not read ahead");
            }
        });
    }

    /// Writes down what a copy of a template has touched of its memory.
    pub async fn learn(&self, pid: i32, copy: &MachineId, template: &GenerationId) -> Result<()> {
        let (memory, generations, template) =
            (self.directory(copy), self.generations.clone(), template.clone());
        blocking(move || {
            let ranges = ahead::touched(pid, &files(&memory)?).file("look for the pages of", &memory)?;
            let text = ahead::format(&ranges);
            if ranges.is_empty() {
                Ok(())
            } else {
                generations.note(&template, ahead::TOUCHED, text.as_bytes())
            }
        })
        .await
    }

    /// Whether that was done.
    pub fn has_learnt(&self, template: &GenerationId) -> bool {
        Files::open(&self.generations.directory(template)).is_ok_and(|files| files.has(ahead::TOUCHED))
    }

    /// Device state that does not belong to the RAM beside it any more.
    pub fn forget_state(&self, id: &MachineId) {
        self.forget(id, &[STATE]);
    }

    /// The memory of a life that is over.
    pub fn forget_memory(&self, id: &MachineId) {
        self.forget(id, &[STATE, RAM]);
    }

    fn forget(&self, id: &MachineId, names: &[&str]) {
        match self.files(id) {
            Ok(files) => names.iter().for_each(|name| directory::discard(&files, name)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(machine = %id, %error, "its directory cannot be used"),
        }
    }

    /// What a crash left half-made or half-removed, and the directories that are whole.
    pub fn survey(&self) -> Result<directory::Survey> {
        directory::survey(&self.all()?, &self.signer)
    }

    /// The user ids of machines that were moved aside.
    pub fn lost_uids(&self, lost: &Lost) -> Vec<u32> {
        let all = lost.all().into_iter();
        let uids = all.filter_map(|entry| {
            let id = entry.note.name.parse().ok()?;
            directory::read_record(&entry.files, &id, &self.signer).ok().map(|record| record.uid)
        });
        uids.collect()
    }

    /// Lets go of a pool that hostd itself mounted.
    pub async fn close(&self) -> Result<()> {
        self.pool.close().await
    }

    /// A reflink needs both files on one filesystem, so an image's disk is
    /// copied into the pool the first time it is used.
    async fn image_in_pool(&self, name: &str, disk: &Path) -> Result<PathBuf> {
        let directory = self.pool.path().join(IMAGES);
        let (disk, name) = (disk.to_owned(), name.to_owned());
        blocking(move || directory::import(&directory, &name, &disk)).await
    }
}

/// Files are slow now and then; the runtime's threads are not for waiting.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(std::io::Error::other(error)).during("work on files"),
    }
}
