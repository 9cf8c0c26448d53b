//! The kernel's networks, with a few kept ready.

use crate::{
    error::{FileContext, IoContext, Result},
    net::{Doors, Link, Network, Networks, Taps, namespace, sockets::Sockets},
    private::make_closed,
    storage::blocking,
};
use berth_types::MachineId;
use std::{
    collections::{HashSet, VecDeque},
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

const LETS_GO: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(10);

#[derive(Clone)]
pub struct KernelNetworks(Arc<Inner>);

struct Inner {
    directory: PathBuf,
    sockets: Sockets,
    spares: Mutex<VecDeque<Network>>,
    /// Names of those that nobody has yet.
    making: Mutex<HashSet<String>>,
    wanted: usize,
    taken: Notify,
}

impl KernelNetworks {
    /// `directory` is where namespaces are pinned.
    pub fn start(directory: PathBuf, spares: u32) -> Result<Self> {
        make_closed(&directory)?;
        let sockets = Sockets::start().during("start a thread")?;
        let wanted = spares as usize;
        let (spares, making, taken) = (Mutex::default(), Mutex::default(), Notify::new());
        let inner = Inner { directory, sockets, spares, making, wanted, taken };
        let networks = Self(Arc::new(inner));
        let refilling = networks.clone();
        tokio::spawn(async move { refilling.refill().await });
        Ok(networks)
    }

    /// Keeps the spares full, off everybody's path.
    async fn refill(&self) {
        loop {
            while self.spares().len() < self.0.wanted {
                match self.make(|network| self.spares().push_back(network)).await {
                    Ok(()) => {}
                    Err(error) => {
                        tracing::warn!(error = error.chain(), "cannot make a spare network");
                        break;
                    }
                }
            }
            self.0.taken.notified().await;
        }
    }

    fn spares(&self) -> std::sync::MutexGuard<'_, VecDeque<Network>> {
        self.0.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn making(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.0.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one and has it taken; until then it counts as being made.
    async fn make<T>(&self, taken: impl FnOnce(Network) -> T) -> Result<T> {
        let name = MachineId::random().to_string();
        self.making().insert(name.clone());
        let made = self.make_as(name.clone()).await.map(taken);
        self.making().remove(&name);
        made
    }

    async fn make_as(&self, name: String) -> Result<Network> {
        let path = self.0.directory.join(&name);
        let (netns, taps, doors) = blocking(move || {
            namespace::make(&path).inspect_err(|_| {
                let _ = namespace::close(&path);
            })
        })
        .await?;
        let mut network = self.network(name, netns);
        network.taps = Some(taps);
        network.doors = Some(Arc::new(doors));
        Ok(network)
    }

    /// Those of a network that was somebody else's. A dead hostd's bridge may take
    /// a moment to let go of them. A machine without is still a machine.
    async fn doors(&self, network: &Network) -> Option<Doors> {
        let deadline = Instant::now() + LETS_GO;
        loop {
            match self.0.sockets.doors(network.netns.clone()).await {
                Ok(doors) => return Some(doors),
                Err(error) if is_held(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => {
                    tracing::error!(network = network.name, %error, "cannot serve a network: its machine reaches nothing");
                    return None;
                }
            }
        }
    }

    fn network(&self, name: String, netns: OwnedFd) -> Network {
        let netns = Arc::new(netns);
        let link = Link::Namespace { netns: netns.clone(), sockets: self.0.sockets.clone() };
        Network { name, netns, link, taps: None, doors: None }
    }
}

/// Somebody still has one of the sockets.
fn is_held(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::ResourceBusy)
}

#[async_trait::async_trait]
impl Networks for KernelNetworks {
    async fn take(&self) -> Result<Network> {
        let spare = self.spares().pop_front();
        self.0.taken.notify_one();
        match spare {
            Some(network) => Ok(network),
            None => self.make(|network| network).await,
        }
    }

    async fn find(&self, name: &str) -> Result<Option<Network>> {
        // The name comes from a record; it must not lead anywhere else.
        let Ok(name) = name.parse::<MachineId>() else { return Ok(None) };
        let Some(netns) = namespace::find(&self.0.directory.join(name.as_str()))? else { return Ok(None) };
        let mut network = self.network(name.to_string(), netns);
        network.doors = self.doors(&network).await.map(Arc::new);
        Ok(Some(network))
    }

    async fn taps(&self, network: &Network) -> std::io::Result<Taps> {
        self.0.sockets.taps(network.netns.clone()).await
    }

    fn release(&self, name: &str) {
        let path = self.0.directory.join(name);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = namespace::close(&path) {
                tracing::warn!(error = error.chain(), "cannot close a network");
            }
        });
    }

    async fn keep_only(&self, names: &[String]) -> Result<()> {
        let directory = &self.0.directory;
        let entries = std::fs::read_dir(directory).file("list", directory)?.flatten();
        let mut there: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        // In this order: a network that was there is being made, or is a spare by now.
        let making = self.making().clone();
        there.retain(|name| !names.contains(name) && !making.contains(name));
        {
            let spares = self.spares();
            there.retain(|name| !spares.iter().any(|spare| spare.name == *name));
        }
        for name in there {
            let path = directory.join(name);
            blocking(move || namespace::close(&path)).await?;
        }
        Ok(())
    }
}

impl KernelNetworks {
    /// Tears down the spares: hostd is about to go.
    pub async fn close_spares(&self) {
        let spares = std::mem::take(&mut *self.spares());
        for network in spares {
            let path = self.0.directory.join(&network.name);
            drop(network);
            if let Err(error) = blocking(move || namespace::close(&path)).await {
                tracing::warn!(error = error.chain(), "cannot close a spare network");
            }
        }
    }
}
