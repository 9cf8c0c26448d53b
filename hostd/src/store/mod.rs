//! What hostd must never forget: users, keys, machines, policies and, sealed,
//! secrets.
//!
//! sled stays behind this module. Every write is flushed before it returns,
//! for a SIGKILL loses what sled has only accepted; what is mirrored in files
//! beside it can rebuild it (see `recover`).

use crate::{
    error::{Error, Result},
    secret::{Meta, Sealed},
};
use berth_types::{Machine, MachineId, SshKey, User, UserId, egress::EgressPolicy};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// A key and whose it is.
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
}

impl PolicyRecord {
    fn place(&self) -> String {
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
}

/// How long a store that somebody else has open is waited for.
const LOCKED: Duration = Duration::from_secs(10);

const NEXT_UID: &[u8] = b"next-uid";

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
        Ok(Self {
            users: tree("users")?,
            keys: tree("keys")?,
            machines: tree("machines")?,
            secrets: tree("secrets")?,
            policies: tree("policies")?,
            flushing: Arc::default(),
            database,
        })
    }

    pub fn users(&self) -> Result<Vec<User>> {
        all(&self.users, "a user")
    }

    pub fn keys(&self) -> Result<Vec<KeyRecord>> {
        all(&self.keys, "a key")
    }

    pub fn machines(&self) -> Result<Vec<Machine>> {
        all(&self.machines, "a machine")
    }

    pub async fn put_user(&self, user: &User) -> Result<()> {
        put(&self.users, user.id.as_str(), user, "a user")?;
        self.flush().await
    }

    pub async fn remove_user(&self, user: &UserId) -> Result<()> {
        self.users.remove(user.as_str()).map_err(during("remove a user"))?;
        self.flush().await
    }

    pub async fn put_key(&self, record: &KeyRecord) -> Result<()> {
        put(&self.keys, &record.key.fingerprint, record, "a key")?;
        self.flush().await
    }

    pub async fn remove_key(&self, fingerprint: &str) -> Result<()> {
        self.keys.remove(fingerprint).map_err(during("remove a key"))?;
        self.flush().await
    }

    pub async fn put_machine(&self, machine: &Machine) -> Result<()> {
        put(&self.machines, machine.id.as_str(), machine, "a machine")?;
        self.flush().await
    }

    pub async fn remove_machine(&self, id: &MachineId) -> Result<()> {
        self.machines.remove(id.as_str()).map_err(during("remove a machine"))?;
        self.flush().await
    }

    pub fn secrets(&self) -> Result<Vec<Sealed>> {
        all(&self.secrets, "a secret")
    }

    pub async fn put_secret(&self, meta: &Meta, sealed: &Sealed) -> Result<()> {
        put(&self.secrets, &format!("{}/{}", meta.owner, meta.name), sealed, "a secret")?;
        self.flush().await
    }

    pub async fn remove_secret(&self, meta: &Meta) -> Result<()> {
        let place = format!("{}/{}", meta.owner, meta.name);
        self.secrets.remove(place).map_err(during("remove a secret"))?;
        self.flush().await
    }

    pub fn policies(&self) -> Result<Vec<PolicyRecord>> {
        all(&self.policies, "a policy")
    }

    pub async fn put_policy(&self, record: &PolicyRecord) -> Result<()> {
        put(&self.policies, &record.place(), record, "a policy")?;
        self.flush().await
    }

    pub async fn remove_policy(&self, record: &PolicyRecord) -> Result<()> {
        self.policies.remove(record.place()).map_err(during("remove a policy"))?;
        self.flush().await
    }

    /// A host user id that no machine has had before.
    pub async fn take_uid(&self, base: u32) -> Result<u32> {
        let next = self
            .database
            .update_and_fetch(NEXT_UID, |old| {
                let old = old.and_then(|bytes| bytes.try_into().ok()).map_or(base, u32::from_be_bytes);
                Some(old.max(base).wrapping_add(1).to_be_bytes().to_vec())
            })
            .map_err(during("take a user id"))?;
        self.flush().await?;
        Ok(next.and_then(|bytes| bytes.as_ref().try_into().ok()).map_or(base, u32::from_be_bytes) - 1)
    }

    /// One at a time, on a thread of ours. sled's own flushes wait in the few
    /// threads that would have to write for them: seven at once wait for ever.
    /// Whoever comes second finds most of its work done by the first.
    pub async fn flush(&self) -> Result<()> {
        let turn = self.flushing.clone().lock_owned().await;
        let database = self.database.clone();
        let flushed = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            database.flush()
        });
        let flushed = flushed.await.map_err(|error| during("flush")(std::io::Error::other(error).into()))?;
        flushed.map(drop).map_err(during("flush"))
    }
}

/// sled says so only in words.
fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(error) if error.to_string().contains("could not acquire lock"))
}

fn during(operation: &'static str) -> impl Fn(sled::Error) -> Error {
    move |source| Error::Store { operation, source }
}

fn put<T: Serialize>(tree: &sled::Tree, key: &str, value: &T, what: &'static str) -> Result<()> {
    let bytes = serde_json::to_vec(value).map_err(|source| Error::Record { what, source })?;
    tree.insert(key, bytes).map(drop).map_err(during("write"))
}

fn all<T: DeserializeOwned>(tree: &sled::Tree, what: &'static str) -> Result<Vec<T>> {
    tree.iter()
        .values()
        .map(|value| {
            let value = value.map_err(during("read"))?;
            serde_json::from_slice(&value).map_err(|source| Error::Record { what, source })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[tokio::test]
    async fn what_was_acknowledged_is_there_after_a_reopen() {
        let directory = std::env::temp_dir().join(format!("berth-store-{}", UserId::random()));
        let user = User {
            generation: berth_types::RECORD_GENERATION,
            id: UserId::random(),
            label: "ann".into(),
            created: Timestamp::now(),
        };
        let first = {
            let store = Store::open(&directory).unwrap();
            store.put_user(&user).await.unwrap();
            store.take_uid(700_000).await.unwrap()
        };
        let store = Store::open(&directory).unwrap();
        assert_eq!(store.users().unwrap(), std::slice::from_ref(&user));
        assert_eq!(first, 700_000);
        assert_eq!(store.take_uid(700_000).await.unwrap(), 700_001);
        store.remove_user(&user.id).await.unwrap();
        assert_eq!(store.users().unwrap(), []);
        drop(store);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_write_at_once_and_all_end() {
        let directory = std::env::temp_dir().join(format!("berth-store-{}", UserId::random()));
        let store = Store::open(&directory).unwrap();
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let store = store.clone();
            writers.spawn(async move {
                for _ in 0..20 {
                    store.take_uid(700_000).await.unwrap();
                }
            });
        }
        let all = async { while writers.join_next().await.is_some_and(|ended| ended.is_ok()) {} };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("they wait for each other");
        assert_eq!(store.take_uid(700_000).await.unwrap(), 700_000 + 64 * 20);
        drop(store);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
