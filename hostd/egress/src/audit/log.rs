//! Writing: one line after the other, each with the hash of the one before.

use super::{
    chain,
    error::{AuditError, FileContext},
    files::{self, Head},
};
use berth_types::{AuditEntry, AuditEvent};
use ed25519_dalek::SigningKey;
use jiff::Timestamp;
use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Entries between two checkpoints at most.
pub const CHECKPOINT_EVERY: u64 = 256;

/// When a file is full, and how many are kept.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    pub bytes: u64,
    pub keep: usize,
}

#[derive(Debug)]
pub struct Log {
    directory: PathBuf,
    rotation: Rotation,
    key: SigningKey,
    file: File,
    number: u64,
    length: u64,
    seq: u64,
    prev: String,
    unsigned: u64,
    /// Events that could not be written.
    lost: u64,
}

impl Log {
    /// Goes on where the last line ended. What a crash tore is taken away.
    pub fn open(directory: &Path, rotation: Rotation, key: SigningKey) -> Result<Self, AuditError> {
        fs::create_dir_all(directory).file("create", directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o700)).file("protect", directory)?;
        let public = chain::hex(key.verifying_key().as_bytes());
        files::replace(&directory.join(files::PUBLIC_KEY), public.as_bytes())?;
        let numbers = files::list(directory)?;
        let number = numbers.last().copied().unwrap_or(1);
        let path = files::path(directory, number);
        let file =
            OpenOptions::new().create(true).append(true).mode(0o600).open(&path).file("open", &path)?;
        let size = file.metadata().file("read", &path)?.len();
        let (mut line, whole) = files::last_line(&path)?;
        file.set_len(whole).file("mend", &path)?;
        if line.is_empty()
            && let Some(before) = numbers.iter().rev().nth(1)
        {
            // Killed just after a new file was begun.
            line = files::last_line(&files::path(directory, *before))?.0;
        }
        let (seq, prev) = match serde_json::from_slice::<AuditEntry>(&line) {
            Ok(entry) => (entry.seq + 1, chain::hash(&line)),
            Err(_) if line.is_empty() => (0, chain::GENESIS.to_owned()),
            // Somebody's work: the chain goes on behind it, and `verify` points at it.
            Err(_) => (0, chain::hash(&line)),
        };
        let directory = directory.to_owned();
        let (length, unsigned, lost) = (whole, 0, 0);
        let mut log = Self { directory, rotation, key, file, number, length, seq, prev, unsigned, lost };
        if size > whole {
            log.append(Timestamp::now(), AuditEvent::Recovered { bytes: size - whole })?;
        }
        Ok(log)
    }

    pub fn append(&mut self, time: Timestamp, event: AuditEvent) -> Result<(), AuditError> {
        if self.lost > 0 {
            let events = std::mem::take(&mut self.lost);
            if let Err(error) = self.write(Timestamp::now(), AuditEvent::Lost { events }) {
                self.lost = events + 1;
                return Err(error);
            }
        }
        self.write(time, event).inspect_err(|_| self.lost += 1)?;
        if self.unsigned >= CHECKPOINT_EVERY {
            self.checkpoint()?;
        }
        if self.length >= self.rotation.bytes {
            self.rotate()?;
        }
        Ok(())
    }

    /// Signs and syncs, if there is anything to sign.
    pub fn checkpoint(&mut self) -> Result<(), AuditError> {
        if self.unsigned == 0 {
            return Ok(());
        }
        let oldest = files::list(&self.directory)?.first().copied().unwrap_or(self.number);
        self.sign(oldest)
    }

    /// `oldest` is the first file that is still there from now on.
    fn sign(&mut self, oldest: u64) -> Result<(), AuditError> {
        let event = chain::checkpoint(&self.key, self.seq, &self.prev, oldest);
        self.write(Timestamp::now(), event)?;
        self.unsigned = 0;
        let path = files::path(&self.directory, self.number);
        self.file.sync_data().file("sync", &path)?;
        // After the log: it never names a line that is not there.
        files::write_head(&self.directory, &Head { seq: self.seq - 1, hash: self.prev.clone() })
    }

    fn write(&mut self, time: Timestamp, event: AuditEvent) -> Result<(), AuditError> {
        let entry = AuditEntry { seq: self.seq, time, event, prev: self.prev.clone() };
        let mut line = serde_json::to_vec(&entry).map_err(AuditError::Encode)?;
        let hash = chain::hash(&line);
        line.push(b'\n');
        let path = files::path(&self.directory, self.number);
        if let Err(error) = self.file.write_all(&line) {
            // Half a line must not stand in the way of the next one.
            let _ = self.file.set_len(self.length);
            return Err(error).file("write", &path);
        }
        self.length += line.len() as u64;
        self.seq += 1;
        self.unsigned += 1;
        self.prev = hash;
        Ok(())
    }

    /// The next file. The last one ends signed, and says which may go: a crash
    /// before they are gone leaves more than there need be, never less.
    fn rotate(&mut self) -> Result<(), AuditError> {
        let numbers = files::list(&self.directory)?;
        let surplus = (numbers.len() + 1).saturating_sub(self.rotation.keep.max(2));
        self.sign(numbers.get(surplus).copied().unwrap_or(self.number))?;
        let path = files::path(&self.directory, self.number + 1);
        self.file =
            OpenOptions::new().create(true).append(true).mode(0o600).open(&path).file("open", &path)?;
        (self.number, self.length) = (self.number + 1, 0);
        for number in numbers.iter().take(surplus) {
            let old = files::path(&self.directory, *number);
            fs::remove_file(&old).file("remove", &old)?;
        }
        Ok(())
    }
}
