//! Networks: for each machine that is up a namespace with two taps, the same
//! names and addresses in every one.
//!
//! Nothing routes out of a namespace. All that a guest sends is led to sockets
//! that the egress bridge serves, and what it may reach is decided there.

mod addresses;
mod alarm;
mod hangup;
mod kernel;
mod namespace;
mod nft;
mod rules;
mod sockets;
mod tap;

pub use addresses::{Addresses, own as own_addresses};
pub use alarm::Alarm;
pub use kernel::KernelNetworks;
pub use rules::{Doors, share};

use crate::error::Result;
use sockets::Sockets;
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};
use tokio::net::{TcpSocket, TcpStream};

/// A machine's network, from the host's side.
#[derive(Debug)]
pub struct Network {
    pub name: String,
    pub netns: Arc<OwnedFd>,
    pub link: Link,
    /// Our own ends of the taps. While we hold them, what is sent to a guest
    /// that rests waits in their queues. Absent for an adopted machine.
    pub taps: Option<Taps>,
    /// What the bridge serves its guest on. Absent in flow tests.
    pub doors: Option<Arc<Doors>>,
}

#[derive(Debug)]
pub struct Taps {
    pub ctl: OwnedFd,
    pub eth: OwnedFd,
}

/// The way to a guest.
#[derive(Clone, Debug)]
pub enum Link {
    Namespace {
        netns: Arc<OwnedFd>,
        sockets: Sockets,
    },
    /// Guests of flow tests listen on loopback.
    #[cfg(test)]
    Loopback(SocketAddr),
}

#[async_trait::async_trait]
pub trait Networks: Send + Sync + 'static {
    /// A fresh network, ready at once where spares are kept.
    async fn take(&self) -> Result<Network>;

    /// The network of a hypervisor that outlived hostd.
    async fn find(&self, name: &str) -> Result<Option<Network>>;

    /// Our own ends of a network's taps, once no hypervisor has them.
    async fn taps(&self, network: &Network) -> io::Result<Taps>;

    /// Lets go of a network; returns before it is torn down.
    fn release(&self, name: &str);

    /// Tears down every network but these: nobody owns the others.
    async fn keep_only(&self, names: &[String]) -> Result<()>;
}

impl Taps {
    /// Another pair for a hypervisor to use.
    pub fn share(&self) -> io::Result<Self> {
        Ok(Self { ctl: self.ctl.try_clone()?, eth: self.eth.try_clone()? })
    }
}

impl Link {
    /// Rings when something is sent to the guest.
    pub async fn alarm(&self) -> io::Result<Alarm> {
        match self {
            Self::Namespace { netns, sockets } => Alarm::set(sockets, netns.clone()).await,
            #[cfg(test)]
            Self::Loopback(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Ends every connection to a guest that is gone.
    pub async fn hang_up(&self) {
        match self {
            Self::Namespace { netns, sockets } => {
                if let Err(error) = sockets.hang_up(netns.clone()).await {
                    tracing::warn!(%error, "cannot end the connections of a machine that is gone");
                }
            }
            #[cfg(test)]
            Self::Loopback(_) => {}
        }
    }

    /// How many connections to the guest are open.
    pub async fn connections(&self) -> io::Result<usize> {
        match self {
            Self::Namespace { netns, sockets } => sockets.connections(netns.clone()).await,
            #[cfg(test)]
            Self::Loopback(_) => Ok(0),
        }
    }

    /// A fresh connection to guest-init. Guests that are just starting drop the
    /// first packets, and a fresh attempt beats waiting for a retransmission.
    pub async fn dial(&self, limit: Duration) -> io::Result<TcpStream> {
        match tokio::time::timeout(limit, self.connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let stream = match self {
            Self::Namespace { netns, sockets } => {
                let socket = sockets.stream(netns.clone()).await?;
                let address = Ipv4Addr::from(berth_guest_protocol::GUEST_ADDRESS);
                let address = SocketAddr::from((address, berth_guest_protocol::PORT));
                TcpSocket::from_std_stream(socket.into()).connect(address).await?
            }
            #[cfg(test)]
            Self::Loopback(address) => TcpStream::connect(address).await?,
        };
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
