//! Users and their keys.
//!
//! Logins are answered from memory. Each user is mirrored in a signed file of the
//! data directory (`mirror`), from which a lost store is rebuilt.

use crate::{
    admission::Admission,
    error::{FileContext, Result},
    format::{Kind, Signer},
    lost::Lost,
    mirror,
    storage::blocking,
    store::{KeyRecord, Store},
};
use berth_api::{KeyNotice, Session};
use berth_config::Gateway;
use berth_types::{Code, Lock, LostKind, Refusal, SshKey, Unknown, User, UserId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock},
};
use tokio::sync::watch;

/// More keys than anyone has, few enough to list.
const KEYS_MAX: usize = 50;

#[derive(Debug)]
pub struct Registry {
    store: Store,
    mirrors: PathBuf,
    signer: Signer,
    /// One change at a time: what is checked is still so when it is written.
    changing: tokio::sync::Mutex<()>,
    known: RwLock<Known>,
    admission: Admission,
    /// Changes when a login may not go on that could before.
    access: watch::Sender<u64>,
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
    pub async fn open(store: Store, mirrors: PathBuf, signer: Signer, lost: &Lost) -> Result<Self> {
        std::fs::create_dir_all(&mirrors).file("create", &mirrors)?;
        merge(&store, &mirrors, &signer, lost).await?;
        let mut known = Known::default();
        for user in store.users()? {
            known.users.insert(user.id.clone(), user);
        }
        for record in store.keys()? {
            known.owners.insert(record.key.fingerprint.clone(), record.owner.clone());
            known.keys.entry(record.owner).or_default().push(record.key);
        }
        let (changing, known) = (tokio::sync::Mutex::new(()), RwLock::new(known));
        // Another number than an earlier hostd's: what a gateway has seen is out of date then.
        let version = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default();
        let (admission, access) = (Admission::default(), watch::channel(version).0);
        let registry = Self { store, mirrors, signer, changing, known, admission, access };
        for user in registry.users() {
            let keys = registry.keys(&user.id);
            registry.mirror(user, keys).await?;
        }
        Ok(registry)
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

    /// May this login go on?
    pub fn standing(&self, session: &Session) -> std::result::Result<(), Refusal> {
        let refuse = |message: &str, hint: &str| Err(Refusal::new(Code::NotAllowed, message, hint));
        let known = self.known();
        let Some(user) = known.users.get(&session.user) else {
            return refuse("you are not registered any more", "ask the operator");
        };
        if let Some(lock) = &user.locked {
            return Err(locked_out(lock));
        }
        if known.owners.get(&session.key) != Some(&session.user) {
            return refuse("the key of this connection was removed", "connect with another key");
        }
        Ok(())
    }

    /// Waits for the turn to change something for this login, and checks the login again:
    /// its key may have been removed meanwhile.
    async fn changing_for(&self, session: &Session) -> Result<tokio::sync::MutexGuard<'_, ()>> {
        let one_at_a_time = self.changing.lock().await;
        self.standing(session)?;
        Ok(one_at_a_time)
    }

    /// The number of the last change after which logins have to be looked at again.
    pub fn access(&self) -> watch::Receiver<u64> {
        self.access.subscribe()
    }

    fn access_changed(&self) {
        self.access.send_modify(|version| *version += 1);
    }

    /// Shuts a user out, or lets them in again.
    pub async fn set_lock(&self, user: &UserId, lock: Option<Lock>) -> Result<User> {
        let _one_at_a_time = self.changing.lock().await;
        let Some(mut record) = self.user(user) else {
            let hint = "see them with 'berth user ls'";
            return Err(Refusal::new(Code::NotFound, "there is no such user", hint).into());
        };
        record.locked = lock;
        self.store.put_user(&record).await?;
        self.known_mut().users.insert(user.clone(), record.clone());
        self.access_changed();
        self.mirror_again(user).await?;
        Ok(record)
    }

    /// Keys that were added with another key since this one was last told.
    pub async fn notices(&self, user: &UserId, fingerprint: &str) -> Result<Vec<KeyNotice>> {
        let _one_at_a_time = self.changing.lock().await;
        let keys = self.keys(user);
        let Some(own) = keys.iter().find(|key| key.fingerprint == fingerprint) else { return Ok(Vec::new()) };
        let told = own.told.unwrap_or(own.added);
        let is_news = |key: &&SshKey| {
            key.fingerprint != fingerprint && key.added > told && key.added_by.as_deref() != Some(fingerprint)
        };
        let notices: Vec<KeyNotice> = keys
            .iter()
            .filter(is_news)
            .map(|key| KeyNotice {
                fingerprint: key.fingerprint.clone(),
                added: key.added,
                from: key.added_from,
            })
            .collect();
        if !notices.is_empty() {
            let mut own = own.clone();
            own.told = Some(Timestamp::now());
            self.put_key(user, own).await?;
            self.mirror_again(user).await?;
        }
        Ok(notices)
    }

    /// A new user who came by themselves, as far as the limits allow.
    pub async fn register_from(&self, limits: &Gateway, address: IpAddr, key: SshKey) -> Result<User> {
        let one_at_a_time = self.changing.lock().await;
        self.refuse_taken(&key)?;
        self.admission.register(limits, &self.users(), address, Timestamp::now())?;
        let label = key.comment.clone();
        self.make(one_at_a_time, &label, key).await
    }

    /// A new user with a first key.
    pub async fn register(&self, label: &str, key: SshKey) -> Result<User> {
        let one_at_a_time = self.changing.lock().await;
        self.refuse_taken(&key)?;
        self.make(one_at_a_time, label, key).await
    }

    async fn make(
        &self,
        _one_at_a_time: tokio::sync::MutexGuard<'_, ()>,
        label: &str,
        key: SshKey,
    ) -> Result<User> {
        let label = berth_types::text::plain(label, 80);
        let user = User {
            id: UserId::random(),
            label,
            created: Timestamp::now(),
            locked: None,
            unknown: Unknown::new(),
        };
        self.store.put_user(&user).await?;
        self.put_key(&user.id, as_known(key)).await?;
        self.known_mut().users.insert(user.id.clone(), user.clone());
        self.mirror_again(&user.id).await?;
        Ok(user)
    }

    /// Adds a key to the user of `session`.
    pub async fn add_key(&self, session: &Session, key: SshKey) -> Result<SshKey> {
        let user = &session.user;
        let _one_at_a_time = self.changing_for(session).await?;
        if self.owner(&key.fingerprint).as_ref() == Some(user) {
            let message = "that key is yours already";
            return Err(Refusal::new(Code::Conflict, message, "see them with 'key ls'").into());
        }
        self.refuse_taken(&key)?;
        if self.keys(user).len() >= KEYS_MAX {
            let message = format!("you have {KEYS_MAX} keys, the most there may be");
            return Err(Refusal::new(Code::Limit, message, "remove one with 'key rm FINGERPRINT'").into());
        }
        let key = as_known(key);
        self.put_key(user, key.clone()).await?;
        self.mirror_again(user).await?;
        Ok(key)
    }

    /// Removes a key of the user of `session`, by fingerprint or an unambiguous start of one.
    pub async fn remove_key(&self, session: &Session, fingerprint: &str) -> Result<SshKey> {
        let user = &session.user;
        let _one_at_a_time = self.changing_for(session).await?;
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
        // From the mirror first: what is only there comes back with the next start.
        if let Some(user) = self.user(user) {
            let left = keys.into_iter().filter(|other| other.fingerprint != key.fingerprint).collect();
            self.mirror(user, left).await?;
        }
        self.store.remove_key(&key.fingerprint).await?;
        {
            let mut known = self.known_mut();
            known.owners.remove(&key.fingerprint);
            if let Some(keys) = known.keys.get_mut(user) {
                keys.retain(|other| other.fingerprint != key.fingerprint);
            }
        }
        self.access_changed();
        Ok(key)
    }

    pub async fn remove_user(&self, user: &UserId) -> Result<()> {
        let _one_at_a_time = self.changing.lock().await;
        let path = mirror_path(&self.mirrors, user);
        blocking(move || mirror::remove(&path)).await?;
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
        self.access_changed();
        Ok(())
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
        let keys = known.keys.entry(user.clone()).or_default();
        keys.retain(|other| other.fingerprint != key.fingerprint);
        keys.push(key);
        Ok(())
    }

    async fn mirror_again(&self, id: &UserId) -> Result<()> {
        let Some(user) = self.user(id) else { return Ok(()) };
        self.mirror(user, self.keys(id)).await
    }

    async fn mirror(&self, user: User, keys: Vec<SshKey>) -> Result<()> {
        let path = mirror_path(&self.mirrors, &user.id);
        let bytes = self.signer.sign(Kind::User, &Mirror { user, keys })?;
        blocking(move || mirror::write(&path, &bytes)).await
    }
}

/// A caller's key, without what this build does not know: only records may have that.
fn as_known(key: SshKey) -> SshKey {
    SshKey { unknown: Unknown::new(), ..key }
}

/// What a locked user is told.
pub fn locked_out(lock: &Lock) -> Refusal {
    let reason = if lock.reason.is_empty() { String::new() } else { format!(" ({})", lock.reason) };
    Refusal::new(Code::NotAllowed, format!("your account is locked{reason}"), "ask the operator of this host")
}

fn mirror_path(mirrors: &Path, user: &UserId) -> PathBuf {
    mirrors.join(format!("{user}.json"))
}

/// Puts into the store what only mirrors have: all of it, or what a rebuild that was
/// cut short had not come to.
async fn merge(store: &Store, mirrors: &Path, signer: &Signer, lost: &Lost) -> Result<()> {
    let users: HashSet<UserId> = store.users()?.into_iter().map(|user| user.id).collect();
    let mut owners: HashMap<String, UserId> =
        store.keys()?.into_iter().map(|record| (record.key.fingerprint, record.owner)).collect();
    for (name, Mirror { user, keys }) in
        mirror::load(mirrors, lost, |bytes| signer.read::<Mirror>(Kind::User, bytes))?
    {
        if name != user.id.as_str() {
            let path = mirrors.join(format!("{name}.json"));
            lost.put(LostKind::Mirror, &format!("{name}.json"), &path, "it is another user's")?;
            continue;
        }
        for key in keys {
            match owners.get(&key.fingerprint) {
                Some(owner) if *owner == user.id => {}
                Some(owner) => {
                    tracing::error!(user = %user.id, %owner, key = key.fingerprint, "two users have one key");
                }
                None => {
                    owners.insert(key.fingerprint.clone(), user.id.clone());
                    store.put_key(&KeyRecord { owner: user.id.clone(), key }).await?;
                }
            }
        }
        if !users.contains(&user.id) {
            tracing::warn!(user = %user.id, "rebuilt a user from its mirror");
            store.put_user(&user).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{
        tests::{Scratch, World, key},
        verb,
    };
    use berth_api::{Request, Session};
    use berth_types::Code;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_that_is_removed_while_its_request_waits_adds_and_removes_none() {
        let scratch = Scratch::new();
        let world = World::open(&scratch).await;
        let own = world.session();
        for name in ["spare", "stolen"] {
            world.ask(Request::KeyAdd { key: key(name) }).await.unwrap();
        }
        let thief = Session { key: key("stolen").fingerprint, ..own.clone() };
        let progress = verb::Progress::new(tokio::sync::mpsc::unbounded_channel().0);
        let call = |session, request| verb::for_user(&world.host, session, request, &progress);
        let remove = |name| Request::KeyRemove { fingerprint: key(name).fingerprint };

        // Each call passes the first check and waits for the lock, which serves them in this order.
        let held = world.host.registry.changing.lock().await;
        let (removed, added, removed_by_thief, ()) = tokio::join!(
            call(&own, remove("stolen")),
            call(&thief, Request::KeyAdd { key: key("fresh") }),
            call(&thief, remove("spare")),
            async { drop(held) }
        );
        removed.unwrap();
        for refused in [added, removed_by_thief] {
            assert_eq!(refused.unwrap_err().code, Code::NotAllowed);
        }
        let left: Vec<String> =
            world.host.registry.keys(&own.user).into_iter().map(|key| key.comment).collect();
        assert_eq!(left, ["ann", "spare"]);
    }
}
