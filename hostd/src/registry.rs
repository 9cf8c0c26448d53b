//! Users and their keys.
//!
//! Logins are answered from memory. Each user is mirrored in a file of the
//! data directory, from which a lost store can be rebuilt.

use crate::{
    error::{Error, FileContext, Result},
    storage::{blocking, replace},
    store::{KeyRecord, Store},
};
use berth_types::{Code, RECORD_GENERATION, Refusal, SshKey, User, UserId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock},
};

/// More keys than anyone has, few enough to list.
const KEYS_MAX: usize = 50;

#[derive(Debug)]
pub struct Registry {
    store: Store,
    mirrors: PathBuf,
    /// One change at a time: what is checked is still so when it is written.
    changing: tokio::sync::Mutex<()>,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    users: HashMap<UserId, User>,
    owners: HashMap<String, UserId>,
    keys: HashMap<UserId, Vec<SshKey>>,
}

#[derive(Serialize, Deserialize)]
struct Mirror {
    user: User,
    keys: Vec<SshKey>,
}

impl Registry {
    pub async fn open(store: Store, mirrors: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&mirrors).file("create", &mirrors)?;
        if store.users()?.is_empty() {
            rebuild(&store, &mirrors).await?;
        }
        let mut known = Known::default();
        for user in store.users()? {
            known.users.insert(user.id.clone(), user);
        }
        for record in store.keys()? {
            known.owners.insert(record.key.fingerprint.clone(), record.owner.clone());
            known.keys.entry(record.owner).or_default().push(record.key);
        }
        Ok(Self { store, mirrors, changing: tokio::sync::Mutex::new(()), known: RwLock::new(known) })
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn owner(&self, fingerprint: &str) -> Option<UserId> {
        self.known().owners.get(fingerprint).cloned()
    }

    pub fn user(&self, id: &UserId) -> Option<User> {
        self.known().users.get(id).cloned()
    }

    pub fn users(&self) -> Vec<User> {
        let mut users: Vec<User> = self.known().users.values().cloned().collect();
        users.sort_by_key(|user| user.created);
        users
    }

    pub fn keys(&self, user: &UserId) -> Vec<SshKey> {
        let mut keys = self.known().keys.get(user).cloned().unwrap_or_default();
        keys.sort_by_key(|key| key.added);
        keys
    }

    /// A new user with a first key.
    pub async fn register(&self, label: &str, key: SshKey) -> Result<User> {
        let _one_at_a_time = self.changing.lock().await;
        self.refuse_taken(&key)?;
        let label = label.chars().filter(|c| !c.is_control()).take(80).collect();
        let user =
            User { generation: RECORD_GENERATION, id: UserId::random(), label, created: Timestamp::now() };
        self.store.put_user(&user).await?;
        self.put_key(&user.id, key).await?;
        self.known_mut().users.insert(user.id.clone(), user.clone());
        self.mirror(&user.id).await?;
        Ok(user)
    }

    pub async fn add_key(&self, user: &UserId, key: SshKey) -> Result<SshKey> {
        let _one_at_a_time = self.changing.lock().await;
        if self.owner(&key.fingerprint).as_ref() == Some(user) {
            let message = "that key is yours already";
            return Err(Refusal::new(Code::Conflict, message, "see them with 'key ls'").into());
        }
        self.refuse_taken(&key)?;
        if self.keys(user).len() >= KEYS_MAX {
            let message = format!("you have {KEYS_MAX} keys, the most there may be");
            return Err(Refusal::new(Code::Limit, message, "remove one with 'key rm FINGERPRINT'").into());
        }
        self.put_key(user, key.clone()).await?;
        self.mirror(user).await?;
        Ok(key)
    }

    /// By fingerprint or an unambiguous start of one.
    pub async fn remove_key(&self, user: &UserId, fingerprint: &str) -> Result<SshKey> {
        let _one_at_a_time = self.changing.lock().await;
        let keys = self.keys(user);
        let wanted = fingerprint.strip_prefix("SHA256:").unwrap_or(fingerprint);
        let matches = |key: &&SshKey| {
            !wanted.is_empty()
                && key.fingerprint.strip_prefix("SHA256:").is_some_and(|own| own.starts_with(wanted))
        };
        let mut found = keys.iter().filter(matches);
        let refuse = |code, message: &str, hint: &str| Err(Refusal::new(code, message, hint).into());
        let key = match (found.next(), found.next()) {
            (Some(key), None) => key.clone(),
            (None, _) => return refuse(Code::NotFound, "you have no such key", "see them with 'key ls'"),
            _ => return refuse(Code::Usage, "more than one key starts so", "give more of the fingerprint"),
        };
        if keys.len() == 1 {
            return refuse(
                Code::Conflict,
                "that is your last key",
                "add another first, or you lock yourself out",
            );
        }
        self.store.remove_key(&key.fingerprint).await?;
        {
            let mut known = self.known_mut();
            known.owners.remove(&key.fingerprint);
            if let Some(keys) = known.keys.get_mut(user) {
                keys.retain(|other| other.fingerprint != key.fingerprint);
            }
        }
        self.mirror(user).await?;
        Ok(key)
    }

    pub async fn remove_user(&self, user: &UserId) -> Result<()> {
        let _one_at_a_time = self.changing.lock().await;
        for key in self.keys(user) {
            self.store.remove_key(&key.fingerprint).await?;
            self.known_mut().owners.remove(&key.fingerprint);
        }
        self.store.remove_user(user).await?;
        {
            let mut known = self.known_mut();
            known.users.remove(user);
            known.keys.remove(user);
        }
        let path = mirror_path(&self.mirrors, user);
        std::fs::remove_file(&path).file("remove", &path)
    }

    /// Says nothing of whose it is: that is nobody's business.
    fn refuse_taken(&self, key: &SshKey) -> Result<()> {
        if self.owner(&key.fingerprint).is_some() {
            let message = "that key is already registered";
            return Err(Refusal::new(Code::Conflict, message, "make another with ssh-keygen").into());
        }
        Ok(())
    }

    async fn put_key(&self, user: &UserId, key: SshKey) -> Result<()> {
        self.store.put_key(&KeyRecord { owner: user.clone(), key: key.clone() }).await?;
        let mut known = self.known_mut();
        known.owners.insert(key.fingerprint.clone(), user.clone());
        known.keys.entry(user.clone()).or_default().push(key);
        Ok(())
    }

    async fn mirror(&self, id: &UserId) -> Result<()> {
        let Some(user) = self.user(id) else { return Ok(()) };
        let (path, mirror) = (mirror_path(&self.mirrors, id), Mirror { user, keys: self.keys(id) });
        let bytes =
            serde_json::to_vec_pretty(&mirror).map_err(|source| Error::Record { what: "a user", source })?;
        blocking(move || replace(&path, &bytes)).await
    }
}

fn mirror_path(mirrors: &Path, user: &UserId) -> PathBuf {
    mirrors.join(format!("{user}.json"))
}

/// An empty store beside mirrors means that the store was lost.
async fn rebuild(store: &Store, mirrors: &Path) -> Result<()> {
    for entry in std::fs::read_dir(mirrors).file("list", mirrors)?.flatten() {
        let bytes = std::fs::read(entry.path()).file("read", entry.path())?;
        let Ok(mirror) = serde_json::from_slice::<Mirror>(&bytes) else {
            tracing::warn!(file = %entry.path().display(), "a user's mirror does not decode; left alone");
            continue;
        };
        tracing::warn!(user = %mirror.user.id, "rebuilt a user from its mirror");
        for key in mirror.keys {
            store.put_key(&KeyRecord { owner: mirror.user.id.clone(), key }).await?;
        }
        store.put_user(&mirror.user).await?;
    }
    Ok(())
}
