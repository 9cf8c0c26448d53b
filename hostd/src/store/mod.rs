//! What hostd must never forget: users, keys, machines, policies and, sealed,
//! secrets.
//!
//! sled stays behind this module. Every write is flushed before it returns,
//! for a SIGKILL loses what sled has only accepted; what is mirrored in files
//! beside it can rebuild it (see `mirror`).

mod damage;
#[cfg(test)]
pub mod faults;
mod uids;

pub use damage::open_or_set_aside;

use crate::{
    error::{Error, FileContext, IoContext, Result},
    format::{self, Unreadable},
    secret::{Meta, Sealed},
    storage::blocking,
};
use berth_types::{Machine, MachineId, SshKey, Unknown, User, UserId, egress::EgressPolicy};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    fs::File,
    panic::AssertUnwindSafe,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use uids::Uids;

/// A key and whose it is. What a later version says of it is in the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    pub owner: UserId,
    pub key: SshKey,
}

/// What the machines of a user, or those with a label, may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    pub owner: UserId,
    /// `None`: all of them.
    pub label: Option<(String, String)>,
    pub policy: EgressPolicy,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl PolicyRecord {
    pub fn place(&self) -> String {
        match &self.label {
            Some((key, value)) => format!("{}/{key}={value}", self.owner),
            None => self.owner.to_string(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Store {
    database: sled::Db,
    users: sled::Tree,
    keys: sled::Tree,
    machines: sled::Tree,
    secrets: sled::Tree,
    policies: sled::Tree,
    flushing: Arc<tokio::sync::Mutex<()>>,
    /// The file behind it, which sled itself does not sync.
    file: Arc<File>,
    uids: Arc<Uids>,
    broken: Arc<watch::Sender<bool>>,
    #[cfg(test)]
    pub faults: Arc<faults::Faults>,
}

/// How long a store that somebody else has open is waited for.
const LOCKED: Duration = Duration::from_secs(10);

const NEXT_UID: &[u8] = b"next-uid";

const A_USER: &str = "a user";
const A_KEY: &str = "a key";
const A_MACHINE: &str = "a machine";
const A_SECRET: &str = "a secret";
const A_POLICY: &str = "a policy";

impl Store {
    pub fn open(path: &Path) -> Result<Self> {
        // Flushed by hand, before every acknowledgement.
        let config = sled::Config::new().path(path).cache_capacity(16 << 20).flush_every_ms(None);
        let deadline = Instant::now() + LOCKED;
        let database = loop {
            match config.open() {
                // A predecessor's threads may take a moment to let go of it.
                Err(error) if is_locked(&error) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                opened => break opened.map_err(during("open"))?,
            }
        };
        let tree = |name: &str| database.open_tree(name).map_err(during("open a tree"));
        let file = path.join("db");
        let store = Self {
            users: tree("users")?,
            keys: tree("keys")?,
            machines: tree("machines")?,
            secrets: tree("secrets")?,
            policies: tree("policies")?,
            flushing: Arc::default(),
            file: Arc::new(File::open(&file).file("open", &file)?),
            uids: Arc::new(Uids::beside(path)?),
            broken: Arc::new(watch::channel(false).0),
            #[cfg(test)]
            faults: Arc::default(),
            database,
        };
        store.refuse_newer()?;
        Ok(store)
    }

    /// Reads every value once: what is damaged in a file that opens is found here.
    pub fn read_through(&self) -> Result<()> {
        for tree in [&self.users, &self.keys, &self.machines, &self.secrets, &self.policies] {
            tree.iter().try_for_each(|pair| pair.map(drop)).map_err(during("read"))?;
        }
        self.database.get(NEXT_UID).map(drop).map_err(during("read"))
    }

    /// Records of a later version say what this build cannot know: it would drop users and
    /// machines that are there. So it does not start, and nothing is touched.
    fn refuse_newer(&self) -> Result<()> {
        let trees = [
            (&self.users, A_USER),
            (&self.keys, A_KEY),
            (&self.machines, A_MACHINE),
            (&self.secrets, A_SECRET),
            (&self.policies, A_POLICY),
        ];
        for (tree, what) in trees {
            for pair in tree.iter() {
                let (key, value) = pair.map_err(during("read"))?;
                if let Err(Unreadable::Newer(version)) = format::check(&value) {
                    let key = String::from_utf8_lossy(&key).into_owned();
                    return Err(Error::StoreIsNewer { what, key, version });
                }
            }
        }
        Ok(())
    }

    /// Returns when the store has panicked: nothing that it says can be trusted any more.
    pub async fn breaks(&self) {
        // The sender is here, so this ends only when the value is true.
        let _ = self.broken.subscribe().wait_for(|broken| *broken).await;
    }

    pub fn users(&self) -> Result<Vec<User>> {
        all(&self.users, A_USER)
    }

    pub fn keys(&self) -> Result<Vec<KeyRecord>> {
        all(&self.keys, A_KEY)
    }

    pub fn machines(&self) -> Result<Vec<Machine>> {
        all(&self.machines, A_MACHINE)
    }

    pub async fn put_user(&self, user: &User) -> Result<()> {
        self.put(&self.users, user.id.as_str(), user, A_USER).await?;
        self.sync().await
    }

    pub async fn remove_user(&self, user: &UserId) -> Result<()> {
        self.remove(&self.users, user.as_str(), "remove a user").await
    }

    pub async fn put_key(&self, record: &KeyRecord) -> Result<()> {
        self.put(&self.keys, &record.key.fingerprint, record, A_KEY).await?;
        self.sync().await
    }

    pub async fn remove_key(&self, fingerprint: &str) -> Result<()> {
        self.remove(&self.keys, fingerprint, "remove a key").await
    }

    /// Outlives hostd when it returns, and a power failure after [`Store::sync`]: a wake
    /// would wait for the disk otherwise.
    pub async fn put_machine(&self, machine: &Machine) -> Result<()> {
        self.put(&self.machines, machine.id.as_str(), machine, A_MACHINE).await
    }

    pub async fn remove_machine(&self, id: &MachineId) -> Result<()> {
        self.remove(&self.machines, id.as_str(), "remove a machine").await
    }

    pub fn secrets(&self) -> Result<Vec<Sealed>> {
        all(&self.secrets, A_SECRET)
    }

    pub async fn put_secret(&self, meta: &Meta, sealed: &Sealed) -> Result<()> {
        self.put(&self.secrets, &format!("{}/{}", meta.owner, meta.name), sealed, A_SECRET).await?;
        self.sync().await
    }

    pub async fn remove_secret(&self, meta: &Meta) -> Result<()> {
        self.remove(&self.secrets, &format!("{}/{}", meta.owner, meta.name), "remove a secret").await
    }

    pub fn policies(&self) -> Result<Vec<PolicyRecord>> {
        all(&self.policies, A_POLICY)
    }

    pub async fn put_policy(&self, record: &PolicyRecord) -> Result<()> {
        self.put(&self.policies, &record.place(), record, A_POLICY).await?;
        self.sync().await
    }

    pub async fn remove_policy(&self, record: &PolicyRecord) -> Result<()> {
        self.remove(&self.policies, &record.place(), "remove a policy").await
    }

    /// A host user id that no machine has had before, whatever became of the store.
    pub async fn take_uid(&self, base: u32) -> Result<u32> {
        let mut taken = base;
        self.commit("take a user id", || {
            let next = self.database.update_and_fetch(NEXT_UID, |old| {
                let old = old.map_or(base, number);
                Some(old.max(base).wrapping_add(1).to_be_bytes().to_vec())
            })?;
            taken = next.map_or(base, |next| number(&next).wrapping_sub(1));
            Ok(())
        })
        .await?;
        let uids = self.uids.clone();
        blocking(move || uids.reserve(taken)).await?;
        Ok(taken)
    }

    /// No id up to this one is given out any more: some machine has or had it.
    pub async fn raise_uid(&self, had: u32) -> Result<()> {
        let next = self.database.get(NEXT_UID).map_err(during("read"))?.map(number);
        let least = self.uids.least(next).max(had.saturating_add(1));
        if next.is_some_and(|next| next >= least) {
            return Ok(());
        }
        self.commit("raise the next user id", || {
            let raise =
                |old: Option<&[u8]>| Some(old.map_or(least, number).max(least).to_be_bytes().to_vec());
            self.database.update_and_fetch(NEXT_UID, raise).map(drop)
        })
        .await
    }

    async fn put<T: Serialize>(
        &self,
        tree: &sled::Tree,
        key: &str,
        value: &T,
        what: &'static str,
    ) -> Result<()> {
        let text = format::encode(what, value)?;
        self.commit("write", || tree.insert(key, text.into_bytes()).map(drop)).await
    }

    async fn remove(&self, tree: &sled::Tree, key: &str, operation: &'static str) -> Result<()> {
        self.commit(operation, || tree.remove(key).map(drop)).await?;
        self.sync().await
    }

    async fn commit(&self, operation: &'static str, change: impl FnOnce() -> sled::Result<()>) -> Result<()> {
        #[cfg(test)]
        self.faults.strike(operation)?;
        self.caught(operation, change)?;
        self.flush().await
    }

    /// One at a time, on a thread of ours. sled's own flushes wait in the few
    /// threads that would have to write for them: seven at once wait for ever.
    /// A second one finds most of its work done by the first.
    pub async fn flush(&self) -> Result<()> {
        let turn = self.flushing.clone().lock_owned().await;
        let store = self.clone();
        blocking(move || {
            let _turn = turn;
            store.caught("flush", || store.database.flush().map(drop))
        })
        .await
    }

    /// What was flushed outlives a power failure from here on. sled hands its data to the
    /// disk (`sync_file_range`), but neither the file's metadata nor the disk's own cache.
    pub async fn sync(&self) -> Result<()> {
        let file = self.file.clone();
        blocking(move || file.sync_data().during("sync the store")).await
    }

    /// A panic of sled's is an error here. Whether what it was about can still be
    /// trusted it cannot say, so hostd stops, and the next start looks through it.
    fn caught(&self, operation: &'static str, work: impl FnOnce() -> sled::Result<()>) -> Result<()> {
        match caught(operation, || work().map_err(during(operation))) {
            Err(error @ Error::StorePanicked { .. }) => {
                self.broken.send_replace(true);
                Err(error)
            }
            other => other,
        }
    }
}

/// Runs something of sled's that may panic where it should return an error.
fn caught<T>(operation: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Error::StorePanicked { operation, message: message.chars().take(300).collect() })
    })
}

fn number(bytes: impl AsRef<[u8]>) -> u32 {
    bytes.as_ref().try_into().map_or(0, u32::from_be_bytes)
}

/// sled says so only in words.
fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(error) if error.to_string().contains("could not acquire lock"))
}

fn during(operation: &'static str) -> impl Fn(sled::Error) -> Error {
    move |source| Error::Store { operation, source }
}

/// One that does not decode costs nothing but itself: a mirror has it too.
fn all<T: DeserializeOwned>(tree: &sled::Tree, what: &'static str) -> Result<Vec<T>> {
    let mut found = Vec::new();
    for pair in tree.iter() {
        let (key, value) = pair.map_err(during("read"))?;
        match format::decode(&value) {
            Ok(value) => found.push(value),
            Err(error) => {
                let key = String::from_utf8_lossy(&key);
                tracing::error!(what, %key, %error, "a record in the store does not decode");
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
