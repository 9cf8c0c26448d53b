//! The directory of one run, and the promise that nothing outlives it.
//!
//! Whoever makes one writes down who they are. A run that was killed could not
//! clean up; the next one finds its directory, sees that its owner is gone and
//! does it.

use crate::sweep::{left_behind, sweep};
use anyhow::{Context, Result};
use std::{
    env, fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};
use tokio::signal::unix::{SignalKind, signal};

/// Short, because paths of sockets are.
const PARENT: &str = "/var/tmp";
const PREFIX: &str = "bt-";
/// In the environment of everything that a run starts.
pub const MARK: &str = "BERTH_TEST_SCRATCH";

/// What a signal has to clean up.
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

pub struct Scratch {
    path: PathBuf,
    next: AtomicU32,
}

impl Scratch {
    pub fn new() -> Result<Self> {
        reclaim()?;
        let mut random = [0; 3];
        getrandom::fill(&mut random).map_err(|error| anyhow::anyhow!("no randomness: {error}"))?;
        let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = Path::new(PARENT).join(format!("{PREFIX}{name}"));
        // Hypervisors run as users of their own and must get through.
        fs::DirBuilder::new().mode(0o755).create(&path)?;
        let made = Self { path, next: AtomicU32::new(1) };
        // Whole from the first moment: a run beside this one may be looking.
        fs::write(made.path.join("owner.new"), identity(process::id())?)?;
        fs::rename(made.path.join("owner.new"), made.path.join("owner"))?;
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).push(made.path.clone());
        Ok(made)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A number that nobody else in this run has.
    pub fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A new directory in it.
    pub fn directory(&self, kind: &str) -> Result<PathBuf> {
        let path = self.path.join(format!("{kind}{}", self.number()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// Processes, mounts and loop devices that are still there.
    pub fn left_behind(&self) -> Result<Vec<String>> {
        left_behind(&self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if env::var_os("BERTH_TEST_KEEP").is_some() {
            eprintln!("kept: {}", self.path.display());
            return;
        }
        remove(&self.path);
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = sweep(path).and_then(|()| Ok(fs::remove_dir_all(path)?)) {
        eprintln!("cannot clean up {}: {error:#}", path.display());
    }
}

/// Cleans up on SIGINT and SIGTERM, from a thread that does nothing else. The
/// signals are caught and not blocked: programs would inherit a block.
pub fn clean_up_on_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    thread::Builder::new().name("signals".into()).spawn(move || {
        let status = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
            }
        });
        for path in LIVE.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            remove(path);
        }
        process::exit(status);
    })?;
    Ok(())
}

/// Removes what earlier runs left that ended without cleaning up.
fn reclaim() -> Result<()> {
    for entry in fs::read_dir(PARENT)? {
        let path = entry?.path();
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        let Some(owner) = fs::read_to_string(path.join("owner")).ok().filter(|_| ours) else { continue };
        let pid = owner.split(' ').next().and_then(|pid| pid.parse().ok());
        let alive = pid.is_some_and(|pid| identity(pid).is_ok_and(|now| now == owner));
        if !alive {
            eprintln!("reclaiming what an earlier run left in {}", path.display());
            remove(&path);
        }
    }
    Ok(())
}

/// A process id and its start: ids are used again.
fn identity(pid: u32) -> Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Fields are counted behind the name, which may hold spaces.
    let start = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19));
    Ok(format!("{pid} {}", start.context("no start time")?))
}
