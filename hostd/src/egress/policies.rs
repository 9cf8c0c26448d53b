//! What all of a user's machines may reach, or those with a label. A machine's
//! own policy is in its record.

use crate::{
    error::{Error, FileContext, Result},
    storage::{blocking, replace},
    store::{PolicyRecord, Store},
};
use berth_types::{
    Machine, UserId,
    egress::{EgressMode, EgressPolicy},
};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock},
};

/// Whose policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    User,
    Label(String, String),
}

type Known = HashMap<UserId, Vec<PolicyRecord>>;

#[derive(Debug)]
pub struct Policies {
    store: Store,
    mirrors: PathBuf,
    changing: tokio::sync::Mutex<()>,
    known: RwLock<Known>,
}

impl Policies {
    pub async fn open(store: Store, mirrors: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&mirrors).file("create", &mirrors)?;
        let mut records = store.policies()?;
        if records.is_empty() {
            records = rebuild(&store, &mirrors).await?;
        }
        let mut known = Known::new();
        for record in records {
            known.entry(record.owner.clone()).or_default().push(record);
        }
        Ok(Self { store, mirrors, changing: tokio::sync::Mutex::new(()), known: RwLock::new(known) })
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, owner: &UserId, scope: &Scope) -> Option<EgressPolicy> {
        let label = scope.label();
        let known = self.known();
        known.get(owner)?.iter().find(|record| record.label == label).map(|record| record.policy.clone())
    }

    /// The one that a machine without its own goes by: its labels', the
    /// strictest where several have one, else its user's.
    pub fn for_machine(&self, machine: &Machine) -> Option<(Scope, EgressPolicy)> {
        let known = self.known();
        let records = known.get(&machine.owner)?;
        let labelled = records.iter().filter_map(|record| {
            let (key, value) = record.label.clone()?;
            (machine.labels.get(&key) == Some(&value))
                .then(|| (Scope::Label(key, value), record.policy.clone()))
        });
        let strictest = labelled.max_by_key(|(_, policy)| match policy.mode {
            EgressMode::Open => 0,
            EgressMode::Allowlist => 1,
            EgressMode::Closed => 2,
        });
        strictest.or_else(|| {
            let own = records.iter().find(|record| record.label.is_none())?;
            Some((Scope::User, own.policy.clone()))
        })
    }

    /// `None`: none of its own any more.
    pub async fn set(&self, owner: &UserId, scope: &Scope, policy: Option<EgressPolicy>) -> Result<()> {
        let _one_at_a_time = self.changing.lock().await;
        let label = scope.label();
        let mut records = self.known().get(owner).cloned().unwrap_or_default();
        records.retain(|record| record.label != label);
        let record = PolicyRecord { owner: owner.clone(), label, policy: policy.clone().unwrap_or_default() };
        if policy.is_some() {
            self.store.put_policy(&record).await?;
            records.push(record);
        } else {
            self.store.remove_policy(&record).await?;
        }
        let path = self.mirrors.join(format!("{owner}.json"));
        let bytes =
            serde_json::to_vec(&records).map_err(|source| Error::Record { what: "policies", source })?;
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(owner.clone(), records);
        blocking(move || replace(&path, &bytes)).await
    }

    pub async fn forget(&self, owner: &UserId) -> Result<()> {
        let records = self.known().get(owner).cloned().unwrap_or_default();
        for record in records {
            let scope = record.label.map_or(Scope::User, |(key, value)| Scope::Label(key, value));
            self.set(owner, &scope, None).await?;
        }
        Ok(())
    }
}

impl Scope {
    fn label(&self) -> Option<(String, String)> {
        match self {
            Self::User => None,
            Self::Label(key, value) => Some((key.clone(), value.clone())),
        }
    }
}

/// An empty store beside mirrors means that the store was lost.
async fn rebuild(store: &Store, mirrors: &Path) -> Result<Vec<PolicyRecord>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(mirrors).file("list", mirrors)?.flatten() {
        let bytes = std::fs::read(entry.path()).file("read", entry.path())?;
        let records: Vec<PolicyRecord> =
            serde_json::from_slice(&bytes).map_err(|source| Error::Record { what: "policies", source })?;
        for record in records {
            store.put_policy(&record).await?;
            all.push(record);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::{ByteSize, Size};

    #[tokio::test]
    async fn labels_before_the_user_and_the_strictest_label_first() {
        let directory = std::env::temp_dir().join(format!("berth-policies-{}", UserId::random()));
        let open = async || {
            let store = Store::open(&directory.join("store")).unwrap();
            Policies::open(store, directory.join("policies")).await.unwrap()
        };
        let policies = open().await;
        let ann = UserId::random();
        let size = Size { cpus: 1, memory: ByteSize::mib(128), disk: ByteSize::mib(1) };
        let mut machine = Machine::new(ann.clone(), "dev".parse().unwrap(), "debian".into(), size);
        machine.labels.insert("team".into(), "web".into());
        machine.labels.insert("stage".into(), "test".into());
        let mode = |mode| Some(EgressPolicy { mode, ..EgressPolicy::default() });
        let label = |key: &str, value: &str| Scope::Label(key.into(), value.into());
        assert_eq!(policies.for_machine(&machine), None);
        policies.set(&ann, &Scope::User, mode(EgressMode::Closed)).await.unwrap();
        assert_eq!(policies.for_machine(&machine).unwrap().0, Scope::User);
        policies.set(&ann, &label("team", "web"), mode(EgressMode::Open)).await.unwrap();
        policies.set(&ann, &label("stage", "test"), mode(EgressMode::Allowlist)).await.unwrap();
        policies.set(&ann, &label("team", "other"), mode(EgressMode::Closed)).await.unwrap();
        assert_eq!(policies.for_machine(&machine).unwrap().1.mode, EgressMode::Allowlist);
        drop(policies);
        std::fs::remove_dir_all(directory.join("store")).unwrap();
        let policies = open().await;
        assert_eq!(policies.for_machine(&machine).unwrap().1.mode, EgressMode::Allowlist, "rebuilt");
        policies.set(&ann, &label("stage", "test"), None).await.unwrap();
        assert_eq!(policies.for_machine(&machine).unwrap().1.mode, EgressMode::Open);
        drop(policies);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
