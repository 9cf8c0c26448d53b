//! What all of a user's machines may reach, or those with a label. A machine's
//! own policy is in its record.

use crate::{
    error::{FileContext, Result},
    format::{Kind, Signer},
    lost::Lost,
    mirror,
    storage::blocking,
    store::{PolicyRecord, Store},
};
use berth_types::{
    Machine, Unknown, UserId,
    egress::{EgressMode, EgressPolicy},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

/// Whose policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    User,
    Label(String, String),
}

type Known = HashMap<UserId, Vec<PolicyRecord>>;

/// All of a user's, as they are mirrored.
#[derive(Serialize, Deserialize)]
struct Mirror {
    policies: Vec<PolicyRecord>,
}

#[derive(Debug)]
pub struct Policies {
    store: Store,
    mirrors: PathBuf,
    signer: Signer,
    changing: tokio::sync::Mutex<()>,
    known: RwLock<Known>,
    turns: Mutex<HashMap<UserId, Turn>>,
}

/// Held from the reading of one of a user's policies to the writing of what became of
/// it, so that of two changes at once none is lost.
pub type Turn = Arc<tokio::sync::Mutex<()>>;

impl Policies {
    pub async fn open(store: Store, mirrors: PathBuf, signer: Signer, lost: &Lost) -> Result<Self> {
        std::fs::create_dir_all(&mirrors).file("create", &mirrors)?;
        merge(&store, &mirrors, &signer, lost).await?;
        let mut known = Known::new();
        for record in store.policies()? {
            known.entry(record.owner.clone()).or_default().push(record);
        }
        let (changing, turns, all) = (tokio::sync::Mutex::new(()), Mutex::default(), known.clone());
        let policies = Self { store, mirrors, signer, changing, known: RwLock::new(known), turns };
        for (owner, records) in all {
            policies.mirror(&owner, &records).await?;
        }
        Ok(policies)
    }

    /// For changes to this user's policies, machines' own among them.
    pub fn turn(&self, owner: &UserId) -> Turn {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.entry(owner.clone()).or_default().clone()
    }

    /// A user's policies but the one of this scope: how many, and their rules together.
    pub fn beside(&self, owner: &UserId, scope: &Scope) -> (usize, usize) {
        let label = scope.label();
        let known = self.known();
        let others = known.get(owner).into_iter().flatten().filter(|record| record.label != label);
        others.fold((0, 0), |(scopes, rules), record| (scopes + 1, rules + record.policy.rules()))
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
        let place = records.iter().position(|record| record.label == label);
        let unknown = place.map_or_else(Unknown::new, |place| records.remove(place).unknown);
        let wanted = policy.clone().unwrap_or_default();
        let record = PolicyRecord { owner: owner.clone(), label, policy: wanted, unknown };
        if policy.is_some() {
            self.store.put_policy(&record).await?;
            records.push(record);
            self.mirror(owner, &records).await?;
        } else {
            // From the mirror first: what is only there comes back with the next start.
            self.mirror(owner, &records).await?;
            self.store.remove_policy(&record).await?;
        }
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(owner.clone(), records);
        Ok(())
    }

    async fn mirror(&self, owner: &UserId, records: &[PolicyRecord]) -> Result<()> {
        let path = self.mirrors.join(format!("{owner}.json"));
        let bytes = self.signer.sign(Kind::Policies, &Mirror { policies: records.to_vec() })?;
        blocking(move || mirror::write(&path, &bytes)).await
    }

    pub async fn forget(&self, owner: &UserId) -> Result<()> {
        let records = self.known().get(owner).cloned().unwrap_or_default();
        for record in records {
            let scope = record.label.map_or(Scope::User, |(key, value)| Scope::Label(key, value));
            self.set(owner, &scope, None).await?;
        }
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
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

/// Puts into the store what only mirrors have.
async fn merge(store: &Store, mirrors: &Path, signer: &Signer, lost: &Lost) -> Result<()> {
    let there: HashSet<String> = store.policies()?.iter().map(PolicyRecord::place).collect();
    for (name, Mirror { policies }) in
        mirror::load(mirrors, lost, |bytes| signer.read::<Mirror>(Kind::Policies, bytes))?
    {
        // A file under another owner's name is nothing that was written here.
        for record in policies.into_iter().filter(|record| record.owner.as_str() == name) {
            if !there.contains(&record.place()) {
                tracing::warn!(user = %record.owner, "rebuilt a policy from its mirror");
                store.put_policy(&record).await?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::{ByteSize, Size};

    #[tokio::test]
    async fn labels_before_the_user_and_the_strictest_label_first() {
        let directory = std::env::temp_dir().join(format!("berth-policies-{}", UserId::random()));
        std::fs::create_dir_all(&directory).unwrap();
        let open = async || {
            let store = Store::open(&directory.join("store")).unwrap();
            let (signer, lost) = (Signer::open(&directory).unwrap(), Lost::new(&directory, &directory));
            Policies::open(store, directory.join("policies"), signer, &lost).await.unwrap()
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
