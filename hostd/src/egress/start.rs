//! Starting the bridge with what the configuration and the host say.

use super::Authority;
use crate::{
    error::{FileContext, IoContext, Result},
    net::Addresses,
};
use berth_config::Config;
use berth_egress::{
    Bridge, Launch,
    control::{Event, Limits, Settings},
};
use berth_types::egress::Ground;
use nix::sys::resource::{Resource, getrlimit};
use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::mpsc;

const PROGRAM: &str = "berth-bridge";
const RESOLV: &str = "/etc/resolv.conf";
/// Before the kernel is asked again, should it not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// What guests are told at every start has to fit into one message of theirs.
const ROOTS_MAX: usize = 40 << 10;

pub async fn bridge(
    config: &Config,
    authority: &Authority,
    extra_roots: String,
) -> Result<(Bridge, mpsc::Receiver<Event>)> {
    let egress = &config.egress;
    let launch = Launch { program: program(), uid: egress.uid, gid: egress.uid, descriptors: descriptors()? };
    let resolvers =
        if egress.resolvers.is_empty() { resolvers(Path::new(RESOLV)) } else { egress.resolvers.clone() };
    let addresses = Addresses::listen().during("listen for the host's addresses")?;
    let settings = Settings {
        authority_certificate: authority.certificate.clone(),
        authority_key: authority.key.clone(),
        extra_roots,
        hosts: egress.hosts.clone(),
        ground: Ground {
            own: addresses.now().during("list the host's addresses")?,
            private: egress.allow_private.clone(),
        },
        resolvers,
        limits: Limits {
            connections: egress.connections,
            dns_per_second: egress.dns_per_second,
            ..Limits::default()
        },
    };
    let (bridge, events) = Bridge::start(launch, settings.clone()).await?;
    tokio::spawn(follow_addresses(bridge.clone(), settings, addresses));
    Ok((bridge, events))
}

/// The private authorities of the configuration, one after the other.
pub fn extra_roots(config: &Config) -> Result<String> {
    let mut all = String::new();
    for path in &config.egress.extra_roots {
        all.push_str(fs::read_to_string(path).file("read", path)?.trim_end());
        all.push('\n');
    }
    if all.len() > ROOTS_MAX {
        let size =
            std::io::Error::other(format!("they have {} bytes together, more than {ROOTS_MAX}", all.len()));
        return Err(size).during("use egress.extra_roots");
    }
    Ok(all)
}

/// For all machines' connections together: as many as may be had. Where this
/// process was given fewer, it may not give more.
fn descriptors() -> Result<u64> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).during("read the limit of open files")?;
    Ok(most)
}

/// A host's addresses come and go; what is its own must always be known, for
/// reached from a machine it would be the host.
async fn follow_addresses(bridge: Bridge, mut settings: Settings, addresses: Addresses) {
    loop {
        let own = match addresses.changed().await.and_then(|()| addresses.now()) {
            Ok(own) if own != settings.ground.own => own,
            Ok(_) => continue,
            Err(error) => {
                tracing::error!(%error, "the host's own addresses cannot be followed");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        settings.ground.own = own;
        if let Err(error) = bridge.configure(settings.clone()).await {
            tracing::error!(%error, "the egress bridge was not told of the host's new addresses");
        }
    }
}

/// Beside this program, as they are installed; else wherever `PATH` has it.
fn program() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PROGRAM.into())
}

fn resolvers(path: &Path) -> Vec<SocketAddr> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let servers =
        text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok());
    servers.map(|server| (server, 53).into()).collect()
}
