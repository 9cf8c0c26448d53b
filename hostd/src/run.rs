//! hostd from start to end.

use crate::{
    archive::Archive,
    egress::{self, Authority, Links, Policies},
    error::{Error, FileContext, IoContext, Result},
    fleet::Fleet,
    host::{Host, memory_limit},
    keyfile,
    ledger::Ledger,
    net::KernelNetworks,
    recover,
    registry::Registry,
    secret::{MasterKey, Vault},
    server::Server,
    shortage,
    storage::Storage,
    store::Store,
    template,
};
use berth_config::Config;
use berth_egress::audit::{Log, Recorder, Rotation};
use berth_hypervisor::select::{Selected, select};
use berth_types::AuditEvent;
use ed25519_dalek::SigningKey;
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// For what is left of an earlier hostd to let go.
const PREDECESSOR: Duration = Duration::from_secs(10);

/// Runs until a signal or the operator ends it. A signal leaves machines
/// running for the next hostd to adopt; the operator's shutdown stops them.
pub async fn run(config: Config, master: Option<MasterKey>) -> Result<()> {
    let (data, run) = (config.service.data.clone(), config.service.run.clone());
    // 1. Alone on this data directory.
    for directory in [&data, &run, &run.join("vm")] {
        std::fs::create_dir_all(directory).file("create", directory)?;
    }
    let _alone = lock(data.join("hostd.lock")).await?;
    // 2. Everything hostd owns.
    let storage = Storage::open(&config).await?;
    let store = open_store(&data.join("store"))?;
    let archive = Archive::open(storage.generations().clone(), &data.join("signing.key"), config.idle.keep)?;
    let registry = Registry::open(store.clone(), data.join("users")).await?;
    let vault = Vault::open(master, store.clone(), &data.join("secrets")).await?;
    let policies = Policies::open(store.clone(), data.join("policies")).await?;
    let audit = audit_log(&config)?;
    let authority = Authority::open(&data.join("authority"))?;
    let roots = egress::extra_roots(&config)?;
    let ssh_key = berth_egress::public_host_key(&authority.key)
        .map_err(std::io::Error::other)
        .during("make the bridge's host key")?;
    let (bridge, events) = egress::bridge(&config, &authority, roots.clone()).await?;
    let networks = KernelNetworks::start(run.join("net"), config.host.spare_networks)?;
    let ledger = Ledger::new(config.quota, memory_limit(&config));
    let Selected { driver, why } = select(&config.hypervisor)?;
    tracing::info!(driver = driver.name(), version = driver.version(), why, "hypervisor");
    let (end, mut ended) = watch::channel(false);
    let host = Arc::new(Host {
        store,
        storage,
        networks: Arc::new(networks.clone()),
        driver,
        ledger,
        registry,
        fleet: Fleet::default(),
        archive,
        vault,
        policies,
        links: Links::new(Some(bridge)),
        audit,
        authority: authority.certificate,
        roots,
        ssh_key,
        templating: tokio::sync::Mutex::default(),
        closing: watch::channel(false).0,
        end,
        config,
    });
    let version = env!("CARGO_PKG_VERSION").to_owned();
    host.audit.record(AuditEvent::Started { version }).await;
    tokio::spawn(egress::attend(host.clone(), events));
    // 3. What an earlier hostd left.
    recover::recover(&host).await?;
    tokio::spawn(shortage::watch(host.clone()));
    tokio::spawn(template::prepare(host.clone()));
    // 4. Serve.
    let server = Server::bind(&host.config.service.api_socket(), &host.config.gateway.user)?;
    let serving = tokio::spawn(server.serve(host.clone()));
    tracing::info!(socket = %host.config.service.api_socket().display(), "ready");
    let mut terminate = signal(SignalKind::terminate()).during("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).during("listen for signals")?;
    let with_machines = tokio::select! {
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
        _ = ended.wait_for(|ended| *ended) => true,
    };
    // 5. End.
    serving.abort();
    if with_machines {
        // Also when whoever asked hung up before the last was down.
        for handle in host.fleet.all() {
            handle.down().await;
        }
        template::none_under_way(&host).await;
        host.archive.synced().await;
    }
    networks.close_spares().await;
    host.audit.settle().await;
    host.store.flush().await?;
    if with_machines {
        host.networks.keep_only(&[]).await?;
        host.storage.close().await?;
    }
    tracing::info!("ended");
    Ok(())
}

fn audit_log(config: &Config) -> Result<Recorder> {
    let data = &config.service.data;
    let key = SigningKey::from_bytes(&*keyfile::key(&data.join("audit.key"))?);
    let rotation = Rotation { bytes: config.audit.file_size.bytes(), keep: config.audit.keep as usize };
    Ok(Recorder::start(Log::open(&data.join("audit"), rotation, key)?))
}

/// One hostd at a time. A child of one that was killed can hold the lock for the
/// moment between its fork and its exec, so the lock is waited for.
async fn lock(path: PathBuf) -> Result<File> {
    let file = File::create(&path).file("create", &path)?;
    let locked = tokio::task::spawn_blocking(move || file.lock().map(|()| file));
    match tokio::time::timeout(PREDECESSOR, locked).await {
        Ok(Ok(locked)) => locked.file("lock", path),
        Ok(Err(error)) => Err(std::io::Error::other(error)).file("lock", path),
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::WouldBlock)).file("another hostd holds", path),
    }
}

/// A damaged store is set aside, and rebuilt from the mirrors. One that cannot
/// be read for another reason is left alone: it may be well tomorrow.
fn open_store(path: &Path) -> Result<Store> {
    Store::open(path).or_else(|error| {
        let damaged = matches!(&error, Error::Store { source: sled::Error::Corruption { .. }, .. });
        if !damaged {
            return Err(error);
        }
        let aside = path.with_extension(format!("broken-{}", jiff::Timestamp::now().as_second()));
        tracing::error!(error = error.chain(), aside = %aside.display(), "the store is damaged; rebuilding it");
        std::fs::rename(path, &aside).file("set aside", path)?;
        Store::open(path)
    })
}
