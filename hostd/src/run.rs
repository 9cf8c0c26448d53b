//! hostd from start to end.

use crate::{
    archive::Archive,
    egress::{self, Authority, Links, Policies},
    error::{Error, FileContext, IoContext, Result},
    fleet::Fleet,
    format::Signer,
    host::{Host, memory_limit},
    keyfile,
    ledger::Ledger,
    lost::Lost,
    net::KernelNetworks,
    private, recover,
    registry::Registry,
    secret::{MasterKey, Vault},
    server::Server,
    shortage,
    storage::Storage,
    store, template,
};
use berth_audit::{Log, Recorder, Rotation, Series};
use berth_config::Config;
use berth_hypervisor::select::{Selected, refuses_strangers, select};
use berth_types::{AuditEvent, BootId, Code, Refusal, Span};
use ed25519_dalek::SigningKey;
use std::{fs::File, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// For what is left of an earlier hostd to let go.
const PREDECESSOR: Duration = Duration::from_secs(10);

/// Runs until a signal or the operator ends it. A signal leaves machines
/// running for the next hostd to adopt; the operator's shutdown stops them.
pub async fn run(mut config: Config, master: Option<MasterKey>) -> Result<()> {
    // 1. Alone on this data directory, which nobody else may read. It may be a link to a larger
    //    disk; from here on no link is followed.
    private::make(&config)?;
    for place in [&mut config.service.data, &mut config.image.directory] {
        if let Ok(real) = place.canonicalize() {
            *place = real;
        }
    }
    let (data, run) = (config.service.data.clone(), config.service.run.clone());
    let _alone = lock(data.join("hostd.lock")).await?;
    private::tighten(&config)?;
    // 2. Everything hostd owns.
    let signer = Signer::open(&data)?;
    let boot = boot()?;
    let storage = Storage::open(&config, signer.clone(), boot.clone()).await?;
    let lost = Lost::new(storage.pool(), &data);
    let store = store::open_or_set_aside(&data.join("store"))?;
    let archive = Archive::open(storage.generations().clone(), signer.clone(), config.idle.keep, boot);
    let registry = Registry::open(store.clone(), data.join("users"), signer.clone(), &lost).await?;
    let vault = Vault::open(master, store.clone(), &data.join("secrets"), &lost).await?;
    let policies = Policies::open(store.clone(), data.join("policies"), signer.clone(), &lost).await?;
    let audit = audit_log(&config)?;
    let authority = Authority::open(&data.join("authority"))?;
    let roots = egress::extra_roots(&config)?;
    let ssh_key = berth_egress::public_host_key(&authority.key)
        .map_err(std::io::Error::other)
        .during("make the bridge's host key")?;
    let (bridge, events) = egress::bridge(&config, &authority, roots.clone()).await?;
    let networks = KernelNetworks::start(run.join("net"), config.host.spare_networks)?;
    let ledger = Ledger::new(config.quota, memory_limit(&config));
    let selected = select(&config.hypervisor)?;
    if let Some(why) = refuses_strangers(&config, &selected) {
        return Err(Refusal::new(Code::NotAllowed, why, "'berth doctor' says what is missing").into());
    }
    let Selected { driver, why, .. } = selected;
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
        lost,
        signer,
        audit,
        authority: authority.certificate,
        roots,
        ssh_key,
        templating: template::Shelf::default(),
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
        () = host.store.breaks() => {
            // Machines run on. The next start looks through the store, and rebuilds it.
            tracing::error!("the store has panicked: the service stops, and is to be started again");
            return Err(Error::StorePanicked { operation: "serve", message: "see the lines above".into() });
        }
    };
    // 5. End.
    serving.abort();
    if with_machines {
        // Also when whoever asked hung up before the last was down.
        for handle in host.fleet.all() {
            handle.down().await;
        }
        template::none_under_way(&host).await;
    }
    // The host may be about to go down: what sleeps must be on the disk below by then.
    host.archive.sync_all().await;
    if with_machines {
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

/// Which boot of the host this is.
fn boot() -> Result<BootId> {
    const PLACE: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PLACE).file("read", PLACE)?;
    text.trim().parse().map_err(std::io::Error::other).file("read", PLACE)
}

fn audit_log(config: &Config) -> Result<Recorder> {
    let data = &config.service.data;
    let key = SigningKey::from_bytes(&*keyfile::key(&data.join("audit.key"))?);
    let open = |series, keep, keep_for: Span| {
        let (keep, keep_for) = (keep as usize, keep_for.duration());
        let rotation = Rotation { bytes: config.audit.file_size.bytes(), keep, keep_for };
        Log::open(&data.join("audit"), series, rotation, key.clone())
    };
    let deeds = open(Series::Deeds, config.audit.keep, config.audit.keep_for)?;
    let egress = open(Series::Egress, config.audit.egress_keep, config.audit.egress_keep_for)?;
    Ok(Recorder::start(deeds, egress))
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
