//! Flows on the fake driver: what the fleet does, without waiting for guests.

mod access;
mod egress;
mod flash;
mod flows;
mod guests;
mod lost;
mod old_data;
mod planted;
mod power;
mod quotas;
mod recovery;
mod rest;
mod undo;
mod versions;

use crate::{
    archive::Archive,
    egress::{Links, Policies},
    error::Error,
    fleet::Fleet,
    format::Signer,
    host::Host,
    ledger::Ledger,
    lost::Lost,
    machine::Handle,
    recover,
    registry::Registry,
    secret::Vault,
    storage::Storage,
    store::Store,
    verb,
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use berth_api::{Reply, Request, Session};
use berth_audit::{Log, Recorder, Rotation, Series};
use berth_hypervisor::fake::Fake;
use berth_types::{BootId, ByteSize, MachineId, MachineName, MachineSpec, Refusal, SshKey, UserId};
use ed25519_dalek::SigningKey;
use guests::Guests;
use sha2::{Digest, Sha256};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::{mpsc, watch};

/// A directory that goes away with the test, and with it the processes in it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("berth-hostd-{}", MachineId::random()));
        Self::at(&path)
    }

    /// One that is there already.
    pub fn there(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub fn at(path: &Path) -> Self {
        std::fs::create_dir_all(path.join("images/debian")).unwrap();
        for file in ["vmlinux", "initrd"] {
            std::fs::write(path.join("images/debian").join(file), "").unwrap();
        }
        std::fs::write(path.join("images/debian/disk"), vec![7; 8192]).unwrap();
        Self::there(path)
    }

    /// The host's boot, which is another one after a reboot.
    pub fn boot(&self) -> BootId {
        let text = std::fs::read_to_string(self.0.join("boot")).unwrap_or_else(|_| format!("{:08}", 1));
        text.parse().unwrap()
    }

    /// As a power failure does to what is on a disk already: no process is left, and all that
    /// is found next was there before this boot.
    pub fn reboot(&self) {
        let next = String::from(self.boot()).parse::<u32>().unwrap() + 1;
        self.end_processes();
        std::fs::write(self.0.join("boot"), format!("{next:08}")).unwrap();
    }

    fn end_processes(&self) {
        let machines = self.0.join("data/pool/machines");
        for (_, process) in recover::Hypervisors::find(&machines, []).unwrap_or_default().rest() {
            let pid = nix::unistd::Pid::from_raw(process.pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.end_processes();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct World {
    pub host: Arc<Host>,
    pub driver: Fake,
    pub guests: Guests,
    pub user: UserId,
}

impl World {
    /// hostd on that directory, as after a start.
    pub async fn open(scratch: &Scratch) -> Self {
        let store = Store::open(&scratch.path().join("data/store")).unwrap();
        Self::try_open(scratch, store).await.unwrap()
    }

    pub async fn try_open(scratch: &Scratch, store: Store) -> Result<Self, Error> {
        Self::try_open_with(scratch, store, |_| {}).await
    }

    pub async fn open_with(scratch: &Scratch, change: impl FnOnce(&mut berth_config::Config)) -> Self {
        let store = Store::open(&scratch.path().join("data/store")).unwrap();
        Self::try_open_with(scratch, store, change).await.unwrap()
    }

    async fn try_open_with(
        scratch: &Scratch,
        store: Store,
        change: impl FnOnce(&mut berth_config::Config),
    ) -> Result<Self, Error> {
        let mut config = berth_config::parse(berth_config::DEFAULT_TOML).unwrap().config;
        config.service.data = scratch.path().join("data");
        config.service.run = scratch.path().join("run");
        config.image.directory = scratch.path().join("images");
        config.host.pool_reserve = ByteSize(0);
        config.machine.memory = ByteSize::mib(128);
        config.machine.disk = ByteSize::mib(1);
        config.machine.boot_timeout = "12s".parse().unwrap();
        config.machine.stop_timeout = "2s".parse().unwrap();
        config.quota.machines = 3;
        config.idle.ready.clear();
        change(&mut config);
        std::fs::create_dir_all(config.service.run.join("vm")).unwrap();
        let data = config.service.data.clone();
        let signer = Signer::open(&data).unwrap();
        let boot = scratch.boot();
        let storage = Storage::plain(&config, signer.clone(), boot.clone());
        let lost = Lost::new(storage.pool(), &data);
        let registry = Registry::open(store.clone(), data.join("users"), signer.clone(), &lost).await?;
        let driver = Fake::new();
        let guests = Guests::new(driver.clone());
        let user = match registry.users().pop() {
            Some(user) => user.id,
            None => registry.register("ann", key("ann")).await?.id,
        };
        let archive = Archive::open(storage.generations().clone(), signer.clone(), 3, boot);
        let rotation = Rotation { bytes: 1 << 20, keep: 2, keep_for: Default::default() };
        let log = |series| {
            Log::open(&data.join("audit"), series, rotation, SigningKey::from_bytes(&[1; 32])).unwrap()
        };
        let host = Arc::new(Host {
            vault: Vault::open(None, store.clone(), &data.join("secrets"), &lost).await?,
            policies: Policies::open(store.clone(), data.join("policies"), signer.clone(), &lost).await?,
            lost,
            signer,
            links: Links::new(None),
            audit: Recorder::start(log(Series::Deeds), log(Series::Egress)),
            authority: "the authority".into(),
            roots: String::new(),
            ssh_key: "ssh-ed25519 AAAA".into(),
            storage,
            archive,
            templating: Default::default(),
            networks: Arc::new(guests.clone()),
            driver: Arc::new(driver.clone()),
            ledger: Ledger::new(config.quota, ByteSize::gib(1)),
            fleet: Fleet::default(),
            closing: watch::channel(false).0,
            end: watch::channel(false).0,
            store,
            registry,
            config,
        });
        guests.serve(&host);
        recover::recover(&host).await?;
        Ok(Self { host, driver, guests, user })
    }

    pub async fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        let progress = verb::Progress::new(mpsc::unbounded_channel().0);
        verb::for_user(&self.host, &self.session(), request, &progress).await.map(|(reply, _)| reply)
    }

    /// With the user's oldest key.
    pub fn session(&self) -> Session {
        session(&self.host.registry, &self.user)
    }

    pub async fn operate(&self, request: Request) -> Result<Reply, Refusal> {
        let progress = verb::Progress::new(mpsc::unbounded_channel().0);
        verb::for_operator(&self.host, request, &progress).await.map(|(reply, _)| reply)
    }

    pub async fn new_machine(&self, name: &str) -> Result<Handle, Refusal> {
        self.ask(Request::New { spec: spec(name) }).await?;
        Ok(self.machine(name))
    }

    pub fn machine(&self, name: &str) -> Handle {
        self.host.fleet.find(&self.user, &named(name)).unwrap()
    }

    /// Whatever is left of machines: directories and records.
    pub fn remains(&self) -> (usize, usize) {
        let directories = std::fs::read_dir(self.host.storage.machines()).unwrap().count();
        (directories, self.host.store.machines().unwrap().len())
    }
}

/// A login with a user's oldest key.
pub fn session(registry: &Registry, user: &UserId) -> Session {
    let key = registry.keys(user).remove(0).fingerprint;
    Session { user: user.clone(), key, address: [192, 0, 2, 7].into() }
}

pub fn named(name: &str) -> MachineName {
    name.parse().unwrap()
}

pub fn spec(name: &str) -> MachineSpec {
    MachineSpec {
        name: named(name),
        image: None,
        cpus: None,
        memory: None,
        disk: None,
        labels: Default::default(),
        ttl: None,
    }
}

/// Well-formed, and of nobody's.
pub fn key(name: &str) -> SshKey {
    let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
    blob.extend(Sha256::digest(name));
    let fingerprint = format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(&blob)));
    let public = format!("ssh-ed25519 {}", STANDARD.encode(&blob));
    SshKey::new(fingerprint, public, name.to_owned())
}
