//! What the supervisor leaves in the run directory, so that there is only one
//! and the next can find what it started.

use super::process::Recorded;
use berth_sys::private::{CLOSED, PASSABLE, make_directory};
use berth_types::{Code, Refusal};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

#[derive(Clone, Debug)]
pub struct Place(PathBuf);

impl Place {
    pub fn new(run: &Path) -> Self {
        Self(run.join("supervisor"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Becomes the one supervisor; the claim lasts as long as what it returns.
    pub fn claim(&self) -> Result<Claim, Refusal> {
        let path = self.file("lock");
        let failed = |error: io::Error| {
            let hint = "look at service.run in the configuration";
            Refusal::new(Code::Failed, format!("cannot write {} ({error})", path.display()), hint)
        };
        // The gateway's user passes through to hostd's socket.
        let run = self.0.parent().unwrap_or(&self.0);
        make_directory(run, PASSABLE).and_then(|()| make_directory(&self.0, CLOSED)).map_err(failed)?;
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let holder =
                self.holder().map_or_else(String::new, |holder| format!(" (process {})", holder.pid()));
            let message = format!("the service is running already{holder}");
            return Err(Refusal::new(Code::Conflict, message, "stop it with 'berth down'"));
        }
        self.forget("ready");
        lock.set_len(0).map_err(failed)?;
        if let Some(this) = Recorded::this() {
            writeln!(lock, "{this}").map_err(failed)?;
        }
        Ok(Claim { lock })
    }

    /// The supervisor that runs now.
    pub fn holder(&self) -> Option<Recorded> {
        self.read("lock").filter(|holder| holder.is_alive())
    }

    /// Has the supervisor that runs now seen the service answer? What answers
    /// before that may be what a killed one left, about to be ended.
    pub fn is_ready(&self) -> bool {
        self.holder().is_some_and(|holder| self.read("ready.pid") == Some(holder))
    }

    /// A daemon that runs now, whoever started it here.
    pub fn daemon(&self, name: &str) -> Option<Recorded> {
        self.read(&format!("{name}.pid")).filter(|daemon| daemon.is_alive())
    }

    pub fn record(&self, name: &str, daemon: Recorded) -> io::Result<()> {
        fs::write(self.file(&format!("{name}.pid")), format!("{daemon}\n"))
    }

    pub fn forget(&self, name: &str) {
        // One that was never written is forgotten already.
        let _ = fs::remove_file(self.file(&format!("{name}.pid")));
    }

    fn read(&self, name: &str) -> Option<Recorded> {
        let mut text = String::new();
        File::open(self.file(name)).ok()?.take(64).read_to_string(&mut text).ok()?;
        text.parse().ok()
    }
}

/// Held by the one supervisor. The kernel lets go of it however that ends.
#[derive(Debug)]
pub struct Claim {
    lock: File,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Closing it would do, but for what was forked and has not closed it yet.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_supervisor_at_a_time() {
        let run = std::env::temp_dir().join(format!("berth-place-{}", std::process::id()));
        let place = Place::new(&run);
        let claim = place.claim().unwrap();
        assert_eq!(place.holder(), Recorded::this());
        assert!(!place.is_ready());
        place.record("ready", Recorded::this().unwrap()).unwrap();
        assert!(place.is_ready());
        let refusal = place.claim().unwrap_err();
        assert_eq!(refusal.code, Code::Conflict);
        assert!(refusal.message.contains(&std::process::id().to_string()), "{refusal}");
        drop(claim);
        drop(place.claim().unwrap());
        fs::remove_dir_all(run).unwrap();
    }
}
