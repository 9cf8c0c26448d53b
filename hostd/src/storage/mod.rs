//! Storage: a pool with reflinks, and a directory in it for every machine.

mod ahead;
mod directory;
mod early;
mod extents;
mod generation;
mod parting;
mod pool;

pub use directory::replace;
pub use early::{Busy, Early};
pub use generation::{Found, Generations, Occupied, Way, fingerprint};
pub use pool::Space;

use crate::error::{FileContext, IoContext, Result, pool_full};
use berth_config::Config;
use berth_types::{ByteSize, GenerationId, Machine, MachineId, Refusal};
use directory::{DISK, MAKING, REMOVING, STATE};
use generation::RAM;
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
    pub async fn open(config: &Config) -> Result<Self> {
        let pool = pool::Pool::open(&config.service.data, config.host.pool_size).await?;
        let machines = pool.path().join("machines");
        directory::make_private(&machines)?;
        directory::forget_imports(&pool.path().join(IMAGES));
        let generations = Generations::open(pool.path())?;
        Ok(Self {
            pool,
            machines,
            generations,
            images: config.image.directory.clone(),
            kernel: config.image.kernel.clone(),
            reserve: config.host.pool_reserve,
        })
    }

    /// A pool without a mount, on whatever filesystem tests run on.
    #[cfg(test)]
    pub fn plain(config: &Config) -> Self {
        let pool = pool::Pool::plain(config.service.data.join("pool"));
        let machines = pool.path().join("machines");
        std::fs::create_dir_all(&machines).unwrap();
        let (images, kernel) = (config.image.directory.clone(), PathBuf::new());
        let generations = Generations::open(pool.path()).unwrap();
        Self { pool, machines, generations, images, kernel, reserve: config.host.pool_reserve }
    }

    pub fn directory(&self, id: &MachineId) -> PathBuf {
        self.machines.join(id.as_str())
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
        ByteSize(std::fs::metadata(self.directory(id).join(DISK)).map_or(0, |stat| stat.len()))
    }

    /// Which of a machine's files are there.
    pub fn has(&self, id: &MachineId) -> Has {
        let there = |name| self.directory(id).join(name).exists();
        Has { disk: there(DISK), memory: there(RAM) && there(STATE) }
    }

    /// Makes a machine's directory under a name that a crash leaves
    /// recognisable. Without an image it has no disk yet: it sleeps in a
    /// generation that has.
    pub async fn make(&self, machine: &Machine, image: Option<&ImageFiles>) -> Result<()> {
        let making = self.machines.join(format!("{MAKING}{}", machine.id));
        let source = match image {
            Some(image) => Some(self.image_in_pool(&machine.image, &image.disk).await?),
            None => None,
        };
        let machine = machine.clone();
        blocking(move || {
            let made = directory::fill(&making, &machine, source.as_deref());
            if made.is_err() {
                let _ = std::fs::remove_dir_all(&making);
            }
            made
        })
        .await
    }

    /// The machine is in the store now: its directory takes its own name. That reaches the
    /// disk below in the background; whoever has to know it asks for `sync_directories`.
    pub async fn publish(&self, id: &MachineId) -> Result<()> {
        let (from, to) = (self.machines.join(format!("{MAKING}{id}")), self.directory(id));
        blocking(move || std::fs::rename(&from, &to).file("publish", &to)).await?;
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
        let hidden = self.machines.join(format!("{REMOVING}{id}"));
        let places = [self.directory(id), self.machines.join(format!("{MAKING}{id}"))];
        blocking(move || {
            for place in places {
                match std::fs::rename(&place, &hidden) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error).file("hide", place);
                    }
                    _ => {}
                }
            }
            match std::fs::remove_dir_all(&hidden) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).file("remove", hidden)
                }
                _ => Ok(()),
            }
        })
        .await
    }

    /// The record beside the machine, from which the store can be rebuilt.
    pub async fn mirror(&self, machine: &Machine) -> Result<()> {
        let (directory, machine) = (self.directory(&machine.id), machine.clone());
        blocking(move || directory::write_record(&directory, &machine)).await
    }

    /// What a machine's disk occupies now, wherever it is.
    pub fn disk_used(&self, machine: &Machine) -> Option<ByteSize> {
        let asleep = machine.sleeps_in.as_ref().map(|id| self.generations.directory(id));
        directory::disk_used(&asleep.unwrap_or_else(|| self.directory(&machine.id)))
    }

    /// What a machine and points in time occupy together, what they share
    /// counted once. `None` where the pool's filesystem does not tell.
    pub async fn occupied(&self, id: &MachineId, points: &[GenerationId]) -> Option<ByteSize> {
        let mut places = vec![self.directory(id)];
        places.extend(points.iter().map(|point| self.generations.directory(point)));
        let sum = move || extents::together(places.iter().map(PathBuf::as_path)).during("measure a machine");
        blocking(sum).await.ok().map(ByteSize)
    }

    /// The last `limit` bytes of the console.
    pub fn console(&self, id: &MachineId, limit: u64) -> String {
        directory::tail(&self.directory(id).join(directory::CONSOLE), limit)
    }

    /// Writes RAM and disk out while the machine runs, twice: the second time
    /// there is little left, and a reflink finds next to nothing to flush.
    pub async fn presync(&self, id: &MachineId) -> Result<()> {
        let directory = self.directory(id);
        blocking(move || {
            for _ in 0..2 {
                directory::write_out(&directory.join(RAM))?;
                directory::write_out(&directory.join(DISK))?;
            }
            Ok(())
        })
        .await
    }

    /// The same before a capture, and most of its memory cloned where that is worth it.
    pub async fn prepare_capture(&self, id: &MachineId, busy: Busy) -> Result<Option<Early>> {
        let (directory, id) = (self.directory(id), id.clone());
        blocking(move || {
            let (ram, disk) = (directory.join(RAM), directory.join(DISK));
            directory::write_out(&ram)?;
            directory::write_out(&disk)?;
            let early = Early::of(&directory, busy).unwrap_or_else(|error| {
                tracing::debug!(machine = %id, error = error.chain(), "its memory is not cloned ahead");
                None
            });
            directory::write_out(&ram)?;
            directory::write_out(&disk)?;
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
        let memory = self.directory(id).join(RAM);
        let booted = self.generations.directory(template).join(RAM);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = ahead::read(&memory, &booted) {
                tracing::debug!(%error, memory = %memory.display(), "not read ahead");
            }
        });
    }

    /// Writes down what a copy of a template has touched of its memory.
    pub async fn learn(&self, pid: i32, copy: &MachineId, template: &GenerationId) -> Result<()> {
        let memory = self.directory(copy).join(RAM);
        let place = self.generations.directory(template).join(ahead::TOUCHED);
        blocking(move || {
            let ranges = ahead::touched(pid, &memory).file("look for the pages of", &memory)?;
            if ranges.is_empty() { Ok(()) } else { replace(&place, ahead::format(&ranges).as_bytes()) }
        })
        .await
    }

    /// Whether that was done.
    pub fn has_learnt(&self, template: &GenerationId) -> bool {
        self.generations.directory(template).join(ahead::TOUCHED).exists()
    }

    /// Device state that does not belong to the RAM beside it any more.
    pub fn forget_state(&self, id: &MachineId) {
        directory::discard(&self.directory(id).join(STATE));
    }

    /// The memory of a life that is over.
    pub fn forget_memory(&self, id: &MachineId) {
        self.forget_state(id);
        directory::discard(&self.directory(id).join(RAM));
    }

    /// What a crash left half-made or half-removed, and the directories that are whole.
    pub fn survey(&self) -> Result<directory::Survey> {
        directory::survey(&self.machines)
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
