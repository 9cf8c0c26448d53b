//! Storage: a pool with reflinks, and a directory in it for every machine.

mod directory;
mod pool;

pub use directory::replace;
pub use pool::Space;

use crate::error::{FileContext, IoContext, Result, pool_full};
use berth_config::Config;
use berth_types::{ByteSize, Machine, MachineId, Refusal};
use std::path::{Path, PathBuf};

/// A directory whose name starts so is half-made and belongs to no user.
const MAKING: &str = ".making-";
/// A directory whose name starts so is half gone.
const REMOVING: &str = ".removing-";

#[derive(Debug)]
pub struct Storage {
    pool: pool::Pool,
    machines: PathBuf,
    images: PathBuf,
    kernel: PathBuf,
    reserve: ByteSize,
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
        Ok(Self {
            pool,
            machines,
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
        Self { pool, machines, images, kernel, reserve: config.host.pool_reserve }
    }

    pub fn directory(&self, id: &MachineId) -> PathBuf {
        self.machines.join(id.as_str())
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

    /// Makes a machine's directory under a name that a crash leaves recognisable.
    pub async fn make(&self, machine: &Machine, image: &ImageFiles) -> Result<()> {
        let making = self.machines.join(format!("{MAKING}{}", machine.id));
        let (machine, source) = (machine.clone(), self.image_in_pool(&machine.image, &image.disk).await?);
        blocking(move || {
            let made = directory::fill(&making, &machine, &source);
            if made.is_err() {
                let _ = std::fs::remove_dir_all(&making);
            }
            made
        })
        .await
    }

    /// The machine is in the store now: its directory takes its own name.
    pub async fn publish(&self, id: &MachineId) -> Result<()> {
        let (from, to) = (self.machines.join(format!("{MAKING}{id}")), self.directory(id));
        blocking(move || {
            std::fs::rename(&from, &to).file("publish", &to)?;
            directory::sync(to.parent().unwrap_or(&to))
        })
        .await
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

    /// What a machine's files occupy now.
    pub fn occupied(&self, id: &MachineId) -> ByteSize {
        directory::occupied(&self.directory(id))
    }

    /// The last `limit` bytes of the console.
    pub fn console(&self, id: &MachineId, limit: u64) -> String {
        directory::tail(&self.directory(id).join(directory::CONSOLE), limit)
    }

    /// Keeps the console from growing without end.
    pub fn trim_console(&self, id: &MachineId) {
        directory::trim(&self.directory(id).join(directory::CONSOLE));
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
        let directory = self.pool.path().join("images");
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
