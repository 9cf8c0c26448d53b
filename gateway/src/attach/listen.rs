//! `-R`: a listener inside the machine; each connection to it becomes a
//! channel to the client.

use super::forward;
use crate::{
    ssh::{
        channel,
        peer::{Admission, Peer},
    },
    target::Place,
};
use berth_guest_client::Frames;
use berth_guest_protocol::{Incoming, Listen, Open, Opened};
use berth_types::Refusal;
use russh::{Channel, Error, server::Msg};
use std::{net::IpAddr, sync::Arc};
use tokio::task::JoinHandle;

/// What the client is told that a connection came to.
#[derive(Clone, Debug)]
pub enum Announce {
    Tcp { address: String, port: u16 },
    Unix { path: String },
    Agent,
}

/// A listener; dropping it ends it in the machine too.
#[derive(Debug)]
pub struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the guest bound.
#[derive(Debug)]
pub struct Bound {
    pub port: u16,
    pub path: String,
    frames: Frames,
    // The listener lives as long as its stream.
    writer: tokio::net::tcp::OwnedWriteHalf,
}

pub async fn bind(peer: &Peer, place: &Place, listen: Listen) -> Result<Bound, Refusal> {
    let stream = super::open(peer, place, Open::Listen(listen)).await?;
    match stream.opened {
        Opened::Listening { port, path } => {
            Ok(Bound { port, path, frames: stream.frames, writer: stream.writer })
        }
        _ => Err(crate::command::unexpected()),
    }
}

/// Serves a bound listener until it is dropped or its machine goes.
pub fn serve(
    peer: Arc<Peer>,
    place: Place,
    bound: Bound,
    announce: Announce,
    admission: Admission,
) -> Listening {
    Listening(tokio::spawn(async move {
        let Bound { mut frames, writer, .. } = bound;
        loop {
            match frames.incoming().await {
                Ok(incoming) => {
                    // Beyond the limit nobody claims the connection, and the guest drops it.
                    if let Ok(admission) = peer.admit() {
                        let (peer, place, announce) = (Arc::clone(&peer), place.clone(), announce.clone());
                        tokio::spawn(connect(peer, place, announce, incoming, admission));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a listener in a machine ended");
                    break;
                }
            }
        }
        drop((writer, admission));
    }))
}

async fn connect(
    peer: Arc<Peer>,
    place: Place,
    announce: Announce,
    incoming: Incoming,
    admission: Admission,
) {
    let stream = match super::open(&peer, &place, Open::Accept { ticket: incoming.ticket }).await {
        Ok(stream) => stream,
        Err(refusal) => return tracing::debug!(%refusal, "a connection in a machine was lost"),
    };
    match open(&peer, announce, &incoming).await {
        Ok(channel) => {
            let Some(handle) = peer.handle.get().cloned() else { return };
            let (inbox, outlet) = channel::split(channel, handle, Arc::clone(&peer.flow));
            forward::carry(inbox, outlet, stream).await;
        }
        Err(error) => tracing::debug!(%error, "the client refused a forwarded connection"),
    }
    drop(admission);
}

async fn open(peer: &Peer, announce: Announce, incoming: &Incoming) -> Result<Channel<Msg>, Error> {
    let Some(handle) = peer.handle.get() else { return Err(Error::Disconnect) };
    match announce {
        Announce::Tcp { address, port } => {
            // The guest says where from; nobody has to believe more than an address.
            let from = incoming.host.parse::<IpAddr>().map_or_else(|_| "0.0.0.0".into(), |ip| ip.to_string());
            handle
                .channel_open_forwarded_tcpip(address, u32::from(port), from, u32::from(incoming.port))
                .await
        }
        Announce::Unix { path } => handle.channel_open_forwarded_streamlocal(path).await,
        Announce::Agent => handle.channel_open_agent().await,
    }
}
