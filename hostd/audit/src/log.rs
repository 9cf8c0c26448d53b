//! Writing: one line after the other, each with the hash of the one before.

use super::{
    chain,
    error::{AuditError, FileContext},
    files::{self, LONGEST_LINE, Series},
    line,
    mend::{End, mend},
};
use berth_types::{AuditEntry, AuditEvent};
use ed25519_dalek::SigningKey;
use jiff::Timestamp;
use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// Entries between two checkpoints at most.
pub const CHECKPOINT_EVERY: u64 = 256;
/// How many times `keep` files there may be because the oldest are not old enough to go.
const MOST: usize = 4;

/// When a file is full, and which are kept.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    pub bytes: u64,
    pub keep: usize,
    /// What is younger stays also beyond `keep`, up to four times as many files.
    pub keep_for: Duration,
}

#[derive(Debug)]
pub struct Log {
    directory: PathBuf,
    series: Series,
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
    pub fn open(
        directory: &Path,
        series: Series,
        rotation: Rotation,
        key: SigningKey,
    ) -> Result<Self, AuditError> {
        fs::create_dir_all(directory).file("create", directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o700)).file("protect", directory)?;
        let public = chain::hex(key.verifying_key().as_bytes());
        files::replace(&directory.join(files::PUBLIC_KEY), public.as_bytes())?;
        if let Err(newer @ AuditError::Newer { .. }) = files::read_head(directory, series) {
            // The next checkpoint would write over it.
            return Err(newer);
        }
        let numbers = series.list(directory)?;
        let number = numbers.last().copied().unwrap_or(1);
        let End { seq, prev, torn } = mend(directory, series, &numbers)?;
        let path = series.path(directory, number);
        let file = create(&path)?;
        let length = file.metadata().file("read", &path)?.len();
        let directory = directory.to_owned();
        let (unsigned, lost) = (0, 0);
        let mut log =
            Self { directory, series, rotation, key, file, number, length, seq, prev, unsigned, lost };
        if torn > 0 {
            log.append(Timestamp::now(), AuditEvent::Recovered { bytes: torn })?;
        }
        Ok(log)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
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
        let oldest = self.series.list(&self.directory)?.first().copied().unwrap_or(self.number);
        self.sign(oldest)
    }

    /// `oldest` is the first file that is still there from now on.
    fn sign(&mut self, oldest: u64) -> Result<(), AuditError> {
        let time = Timestamp::now();
        let event = chain::checkpoint(&self.key, self.series, (self.seq, &self.prev), oldest, time);
        self.write(time, event)?;
        self.unsigned = 0;
        let path = self.series.path(&self.directory, self.number);
        self.file.sync_data().file("sync", &path)?;
        // After the log: it never names a line that is not there.
        let head = chain::head(&self.key, self.series, self.seq - 1, self.prev.clone(), time);
        files::write_head(&self.directory, self.series, &head)
    }

    fn write(&mut self, time: Timestamp, event: AuditEvent) -> Result<(), AuditError> {
        let mut line = self.line(time, event)?;
        if line.len() > LONGEST_LINE {
            // What cannot be read back must not be written, and not left out silently.
            tracing::error!(bytes = line.len(), "an entry is too long for the audit log");
            line = self.line(time, AuditEvent::Lost { events: 1 })?;
        }
        let hash = chain::hash(&line);
        line.push(b'\n');
        let path = self.series.path(&self.directory, self.number);
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

    fn line(&self, time: Timestamp, event: AuditEvent) -> Result<Vec<u8>, AuditError> {
        let entry = AuditEntry { seq: self.seq, time, event, prev: self.prev.clone() };
        line::encode_entry(&entry)
    }

    /// The next file. The last one ends signed, and says which may go: a crash
    /// before they are gone leaves more than there need be, never less.
    fn rotate(&mut self) -> Result<(), AuditError> {
        let numbers = self.series.list(&self.directory)?;
        let surplus = self.surplus(&numbers);
        self.sign(numbers.get(surplus).copied().unwrap_or(self.number))?;
        self.file = create(&self.series.path(&self.directory, self.number + 1))?;
        (self.number, self.length) = (self.number + 1, 0);
        for number in numbers.iter().take(surplus) {
            let old = self.series.path(&self.directory, *number);
            fs::remove_file(&old).file("remove", &old)?;
        }
        Ok(())
    }

    /// How many of the oldest files go when there is one more.
    fn surplus(&self, numbers: &[u64]) -> usize {
        let keep = self.rotation.keep.max(2);
        let beyond = |most: usize| (numbers.len() + 1).saturating_sub(most);
        let young = |number: &u64| {
            // It was written to last when its last line was.
            let written =
                fs::metadata(self.series.path(&self.directory, *number)).and_then(|it| it.modified());
            written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < self.rotation.keep_for))
        };
        let old = numbers.iter().take(beyond(keep)).take_while(|number| !young(number)).count();
        old.max(beyond(keep.saturating_mul(MOST)))
    }
}

fn create(path: &Path) -> Result<File, AuditError> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path).file("open", path)
}
