//! Another master key, under which every secret is sealed anew.
//!
//! ```text
//!   master.key                     the key, as it was
//!   master.key, master.next        another is made      undone by the next start
//!   master.key = master.old        the old one is kept  undone by the next start
//!   master.key (new), master.old   it counts            finished by the next start
//!   master.key (new)               all is sealed anew
//! ```
//!
//! Whatever opens only under the old key is sealed under the new one; what opens
//! under neither is left as it is. A key that is given to hostd is rotated by
//! whoever gives it: the new one, and the old one beside it until hostd has started.

use super::{Sealed, Secret, Vault, master::MasterKey};
use crate::{
    error::{FileContext, Result},
    fault,
    keyfile::{self, Key},
};
use berth_sys::beneath::sync_parent;
use berth_types::{Code, Refusal};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

struct Files {
    current: PathBuf,
    next: PathBuf,
    old: PathBuf,
}

impl Files {
    fn below(directory: &Path) -> Self {
        let file = |name| directory.join(name);
        Self { current: file("master.key"), next: file("master.next"), old: file("master.old") }
    }
}

/// The key in its file, made on the first start, and the one before it if not
/// everything was sealed anew yet.
pub fn from_files(directory: &Path) -> Result<MasterKey> {
    let files = Files::below(directory);
    remove(&files.next)?;
    let current = keyfile::key(&files.current)?;
    let old = if files.old.exists() { Some(keyfile::key(&files.old)?) } else { None };
    // It was kept, and the new one did not come to count.
    let old = old.filter(|old| **old != *current);
    if old.is_none() {
        remove(&files.old)?;
    }
    Ok(MasterKey { current, old, given: false })
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path).file("sync", path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).file("remove", path),
    }
}

/// Makes another key count, and keeps the one that did.
fn switch(directory: &Path) -> Result<Key> {
    let files = Files::below(directory);
    // Nothing is sealed under an old one any more: see `rekey`.
    remove(&files.next)?;
    remove(&files.old)?;
    let next = keyfile::key(&files.next)?;
    fault::point("rekey.made");
    fs::hard_link(&files.current, &files.old).file("keep", &files.current)?;
    sync_parent(&files.old).file("sync", &files.old)?;
    fault::point("rekey.kept");
    fs::rename(&files.next, &files.current).file("replace", &files.current)?;
    sync_parent(&files.current).file("sync", &files.current)?;
    fault::point("rekey.switched");
    Ok(next)
}

impl Vault {
    /// Makes another master key, and seals every secret under it; how many.
    pub async fn rekey(&self) -> Result<usize> {
        let _one_at_a_time = self.changing.lock().await;
        let before = self.key();
        if before.given {
            let hint = "give hostd the new one, and the old one as BERTH_MASTER_KEY_OLD or the credential \
                        berth-master-key-old, and start it again";
            return Err(Refusal::new(Code::Conflict, "the master key is given to hostd", hint).into());
        }
        // What an earlier attempt could not finish.
        self.seal_anew().await?;
        let current = switch(&self.mirrors)?;
        let key = MasterKey { current, old: Some(before.current.clone()), given: false };
        self.set_key(Arc::new(key));
        self.seal_anew().await
    }

    /// Seals anew what opens only under the key before this one, which goes then.
    pub(super) async fn seal_anew(&self) -> Result<usize> {
        let key = self.key();
        let Some(old) = &key.old else { return Ok(0) };
        let (mut count, mut owners) = (0, BTreeSet::new());
        for sealed in self.store.secrets()? {
            let meta = sealed.meta()?;
            // Mirrors may be behind, whatever of it was done before.
            owners.insert(meta.owner.clone());
            if sealed.open(&key.current).is_some() {
                continue;
            }
            let Some(value) = sealed.open(old) else { continue };
            self.store.put_secret(&meta, &Sealed::seal(&key.current, &meta, &value)?).await?;
            let place = (meta.owner.clone(), meta.name.clone());
            self.known_mut().insert(place, Arc::new(Secret { meta, value: Some(value) }));
            count += 1;
            fault::point("rekey.sealed");
        }
        for owner in owners {
            self.mirror(&owner, |_| true).await?;
            fault::point("rekey.mirrored");
        }
        if !key.given {
            remove(&Files::below(&self.mirrors).old)?;
        }
        self.set_key(Arc::new(MasterKey { current: key.current.clone(), old: None, given: key.given }));
        Ok(count)
    }
}
