//! Everything that hostd owns, in one place that requests and machines share.

use crate::{
    archive::Archive,
    egress::{Links, Policies},
    fleet::Fleet,
    format::Signer,
    ledger::Ledger,
    lost::Lost,
    net::Networks,
    registry::Registry,
    secret::Vault,
    storage::Storage,
    store::Store,
    template::Shelf,
};
use berth_audit::Recorder;
use berth_config::Config;
use berth_hypervisor::Driver;
use berth_types::{ByteSize, MachineId};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::watch;

pub struct Host {
    pub config: Config,
    pub store: Store,
    pub storage: Storage,
    pub networks: Arc<dyn Networks>,
    pub driver: Arc<dyn Driver>,
    pub ledger: Ledger,
    pub registry: Registry,
    pub fleet: Fleet,
    pub archive: Archive,
    pub vault: Vault,
    pub policies: Policies,
    pub links: Links,
    /// What a start could not place.
    pub lost: Lost,
    /// Signs mirrors and manifests.
    pub signer: Signer,
    pub audit: Recorder,
    /// The certificate of this installation's authority, which guests trust.
    pub authority: String,
    /// Private authorities, which they trust too.
    pub roots: String,
    /// By which they know the bridge where it answers in a server's place.
    pub ssh_key: String,
    /// Templates in the making, and which are kept.
    pub templating: Shelf,
    /// Turned true by the operator's shutdown: nothing is started any more.
    pub closing: watch::Sender<bool>,
    /// Turns true when that shutdown has been answered.
    pub end: watch::Sender<bool>,
}

/// How long who has just woken, or may come back at once, should have the cores alone.
const WHILE: Duration = Duration::from_secs(2);

impl Host {
    /// A hypervisor's control socket: short, for a socket's path has 107 bytes.
    pub fn vm_socket(&self, id: &MachineId) -> PathBuf {
        self.config.service.run.join("vm").join(format!("{id}.sock"))
    }

    /// How long a guest may take to come up.
    pub fn boot_limit(&self) -> Duration {
        self.config.machine.boot_timeout.duration()
    }

    /// After that a boot is begun anew, once: an emulated guest was seen to stand
    /// still while it booted.
    pub fn first_boot_limit(&self) -> Duration {
        self.boot_limit() / 4
    }

    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// What nobody waits for is done after this; at once when the service closes.
    pub async fn a_while(&self) {
        let _ = tokio::time::timeout(WHILE, self.closes()).await;
    }

    /// Returns when the operator shuts the service down.
    pub async fn closes(&self) {
        // It fails only if the sender is gone, and that is here.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }
}

/// What machines may have together: as configured, or nine tenths of the host's.
pub fn memory_limit(config: &Config) -> ByteSize {
    if config.host.memory.bytes() > 0 {
        return config.host.memory;
    }
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: u64 = total.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    ByteSize(kib * 1024 / 10 * 9)
}
