//! Secrets: sealed at rest, open in memory, and shown to nobody but the bridge.
//!
//! There is no way to ask for a value: what can be read back is a secret's name,
//! where it goes, and when it was set.

mod master;
mod rekey;
mod seal;

pub use master::MasterKey;
pub use seal::Sealed;

use crate::{
    error::{FileContext, Result},
    format::{self, Unreadable},
    lost::Lost,
    mirror,
    storage::blocking,
    store::Store,
};
use berth_types::{
    Code, Machine, MachineId, Refusal, Unknown, UserId,
    egress::{Binding, SecretName, SecretValue},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashSet},
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

/// More than anyone has, few enough to look through for every request.
const MOST: usize = 100;

/// All of a secret but its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    pub owner: UserId,
    pub name: SecretName,
    pub binding: Binding,
    /// Only for this machine and its forks.
    #[serde(default)]
    pub machine: Option<MachineId>,
    /// What machines have instead of the value.
    pub placeholder: String,
    pub created: Timestamp,
    /// When the value was last set.
    pub set: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A secret in memory. Without a value: its master key is another's.
#[derive(Debug)]
pub struct Secret {
    pub meta: Meta,
    pub value: Option<SecretValue>,
}

impl Secret {
    /// Does it apply to this machine?
    pub fn is_for(&self, machine: &Machine) -> bool {
        if self.meta.owner != machine.owner {
            return false;
        }
        match &self.meta.machine {
            Some(only) if *only == machine.id => true,
            _ if machine.no_secrets => false,
            Some(only) => machine.lineage.contains(only),
            None => true,
        }
    }
}

/// All of a user's, as they are mirrored.
#[derive(Serialize, Deserialize)]
struct Mirror {
    secrets: Vec<Sealed>,
}

type Known = BTreeMap<(UserId, SecretName), Arc<Secret>>;

#[derive(Debug)]
pub struct Vault {
    key: RwLock<Arc<MasterKey>>,
    store: Store,
    /// Beside the store, sealed as there: from these it can be rebuilt.
    mirrors: PathBuf,
    changing: tokio::sync::Mutex<()>,
    known: RwLock<Known>,
}

impl Vault {
    pub async fn open(key: Option<MasterKey>, store: Store, directory: &Path, lost: &Lost) -> Result<Self> {
        std::fs::create_dir_all(directory).file("create", directory)?;
        std::fs::set_permissions(directory, Permissions::from_mode(0o700)).file("protect", directory)?;
        let key = match key {
            Some(key) => key,
            None => rekey::from_files(directory)?,
        };
        merge(&store, directory, lost).await?;
        let mut known = Known::new();
        for one in store.secrets()? {
            let (meta, value) = (one.meta()?, one.open_with(&key));
            if value.is_none() {
                tracing::error!(user = %meta.owner, name = %meta.name,
                    "a secret was sealed under another master key; its hosts are refused until it is set again");
            }
            known.insert((meta.owner.clone(), meta.name.clone()), Arc::new(Secret { meta, value }));
        }
        let (changing, known) = (tokio::sync::Mutex::new(()), RwLock::new(known));
        let key = RwLock::new(Arc::new(key));
        let vault = Self { key, store, mirrors: directory.to_owned(), changing, known };
        let count = vault.seal_anew().await?;
        if count > 0 {
            tracing::info!(count, "secrets were sealed under the new master key");
        }
        Ok(vault)
    }

    fn key(&self) -> Arc<MasterKey> {
        self.key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_key(&self, key: Arc<MasterKey>) {
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = key;
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A user's secrets, by name.
    pub fn of(&self, user: &UserId) -> Vec<Arc<Secret>> {
        let known = self.known();
        known.iter().filter(|((owner, _), _)| owner == user).map(|(_, secret)| secret.clone()).collect()
    }

    /// Those that apply to a machine.
    pub fn for_machine(&self, machine: &Machine) -> Vec<Arc<Secret>> {
        self.of(&machine.owner).into_iter().filter(|secret| secret.is_for(machine)).collect()
    }

    /// Sets a secret, or replaces one of that name. The placeholder stays, so
    /// that what machines have of it goes on to work.
    pub async fn set(
        &self,
        owner: &UserId,
        name: SecretName,
        binding: Binding,
        machine: Option<MachineId>,
        value: SecretValue,
    ) -> Result<Meta> {
        let _one_at_a_time = self.changing.lock().await;
        let place = (owner.clone(), name.clone());
        let old = self.known().get(&place).cloned();
        if old.is_none() && self.of(owner).len() >= MOST {
            let message = format!("you have {MOST} secrets, the most there may be");
            return Err(Refusal::new(Code::Limit, message, "remove one with 'secret rm NAME'").into());
        }
        let now = Timestamp::now();
        let meta = Meta {
            owner: owner.clone(),
            name,
            binding,
            machine,
            placeholder: old
                .as_ref()
                .map_or_else(berth_egress::control::new_placeholder, |old| old.meta.placeholder.clone()),
            created: old.as_ref().map_or(now, |old| old.meta.created),
            set: now,
            unknown: old.as_ref().map_or_else(Unknown::new, |old| old.meta.unknown.clone()),
        };
        self.store.put_secret(&meta, &Sealed::seal(&self.key().current, &meta, &value)?).await?;
        self.known_mut().insert(place, Arc::new(Secret { meta: meta.clone(), value: Some(value) }));
        self.mirror(owner, |_| true).await?;
        Ok(meta)
    }

    pub async fn remove(&self, owner: &UserId, name: &SecretName) -> Result<Meta> {
        let _one_at_a_time = self.changing.lock().await;
        let place = (owner.clone(), name.clone());
        let Some(old) = self.known().get(&place).cloned() else {
            let message = format!("you have no secret '{name}'");
            return Err(Refusal::new(Code::NotFound, message, "see them with 'secret ls'").into());
        };
        // From the mirror first: what is only there comes back with the next start.
        self.mirror(owner, |meta| meta.name != *name).await?;
        self.store.remove_secret(&old.meta).await?;
        self.known_mut().remove(&place);
        Ok(old.meta.clone())
    }

    /// Of a user who goes, or of a machine that does.
    pub async fn forget(&self, owner: &UserId, gone: impl Fn(&Meta) -> bool) -> Result<()> {
        for secret in self.of(owner) {
            if gone(&secret.meta) {
                self.remove(owner, &secret.meta.name).await?;
            }
        }
        Ok(())
    }

    async fn mirror(&self, owner: &UserId, stays: impl Fn(&Meta) -> bool) -> Result<()> {
        let secrets: Vec<Sealed> = self
            .store
            .secrets()?
            .into_iter()
            .filter(|one| one.meta().is_ok_and(|meta| meta.owner == *owner && stays(&meta)))
            .collect();
        let path = self.mirrors.join(format!("{owner}.json"));
        let text = format::encode("secrets", &Mirror { secrets })?;
        blocking(move || mirror::write(&path, text.as_bytes())).await
    }
}

/// Puts into the store what only mirrors have. They are not signed: what is sealed in
/// them is authenticated, and does not open if it was altered.
async fn merge(store: &Store, mirrors: &Path, lost: &Lost) -> Result<()> {
    let place = |meta: Meta| (meta.owner, meta.name);
    let there: HashSet<_> = store.secrets()?.iter().filter_map(|one| one.meta().ok()).map(place).collect();
    let read = |bytes: &[u8]| {
        let secrets = match format::decode(bytes) {
            Ok(Mirror { secrets }) => secrets,
            // Version 1: only the list.
            Err(Unreadable::Damaged) => serde_json::from_slice(bytes).map_err(|_| Unreadable::Damaged)?,
            Err(error) => return Err(error),
        };
        let metas = secrets.iter().map(Sealed::read_meta).collect::<Result<Vec<_>, _>>()?;
        Ok(metas.into_iter().zip(secrets).collect::<Vec<_>>())
    };
    for (meta, sealed) in mirror::load(mirrors, lost, read)?.into_iter().flat_map(|(_, all)| all) {
        if !there.contains(&(meta.owner.clone(), meta.name.clone())) {
            tracing::warn!(user = %meta.owner, name = %meta.name, "rebuilt a secret from its mirror");
            store.put_secret(&meta, &sealed).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
