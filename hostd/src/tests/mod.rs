//! Flows on the fake driver: what the fleet does, without waiting for guests.

mod egress;
mod flows;
mod guests;
mod recovery;
mod rest;

use crate::{
    archive::Archive,
    egress::{Links, Policies},
    fleet::Fleet,
    host::Host,
    ledger::Ledger,
    machine::Handle,
    recover,
    registry::Registry,
    secret::Vault,
    storage::Storage,
    store::Store,
    verb,
};
use berth_api::{Reply, Request};
use berth_egress::audit::{Log, Recorder, Rotation};
use berth_hypervisor::fake::Fake;
use berth_types::{ByteSize, MachineId, MachineName, MachineSpec, Refusal, SshKey, UserId};
use ed25519_dalek::SigningKey;
use guests::Guests;
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
        std::fs::create_dir_all(path.join("images/debian")).unwrap();
        for file in ["vmlinux", "initrd"] {
            std::fs::write(path.join("images/debian").join(file), "").unwrap();
        }
        std::fs::write(path.join("images/debian/disk"), vec![7; 8192]).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let machines = self.0.join("data/pool/machines");
        for (pid, _) in recover::hypervisors(&machines).unwrap_or_default().into_values() {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
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
        std::fs::create_dir_all(config.service.run.join("vm")).unwrap();
        let store = Store::open(&config.service.data.join("store")).unwrap();
        let registry = Registry::open(store.clone(), config.service.data.join("users")).await.unwrap();
        let driver = Fake::new();
        let guests = Guests::new(driver.clone());
        let user = match registry.users().pop() {
            Some(user) => user.id,
            None => registry.register("ann", key("ann")).await.unwrap().id,
        };
        let storage = Storage::plain(&config);
        let archive =
            Archive::open(storage.generations().clone(), &config.service.data.join("signing.key"), 3)
                .unwrap();
        let data = &config.service.data;
        let rotation = Rotation { bytes: 1 << 20, keep: 2 };
        let log = Log::open(&data.join("audit"), rotation, SigningKey::from_bytes(&[1; 32])).unwrap();
        let host = Arc::new(Host {
            vault: Vault::open(None, store.clone(), &data.join("secrets")).await.unwrap(),
            policies: Policies::open(store.clone(), data.join("policies")).await.unwrap(),
            links: Links::new(None),
            audit: Recorder::start(log),
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
        recover::recover(&host).await.unwrap();
        Self { host, driver, guests, user }
    }

    pub async fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        let progress = verb::Progress::new(mpsc::unbounded_channel().0);
        verb::for_user(&self.host, &self.user, request, &progress).await.map(|(reply, _)| reply)
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

pub fn key(name: &str) -> SshKey {
    SshKey {
        fingerprint: format!("SHA256:{name}"),
        public: format!("ssh-ed25519 {name}"),
        comment: name.to_owned(),
        added: jiff::Timestamp::now(),
    }
}
