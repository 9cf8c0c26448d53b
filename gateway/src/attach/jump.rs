//! `ssh -J HOST NAME`: an SSH connection inside a channel. It is served here,
//! by the same gateway, and reaches that one machine only.

use super::upstream;
use crate::ssh::{
    channel::{self, Inbox, Outlet},
    peer::{Origin, Peer},
    server,
};
use bytes::BytesMut;
use russh::server::ChannelOpenHandle;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, DuplexStream, ReadHalf};

/// Between the outer channel and the inner connection.
const BUFFER: usize = 256 * 1024;

pub async fn serve(peer: Arc<Peer>, asked: super::forward::Asked, reply: ChannelOpenHandle, origin: Origin) {
    let Some(handle) = peer.handle.get().cloned() else { return };
    let super::forward::Asked { channel, admission } = asked;
    let (mut inbox, outlet) = channel::split(channel, handle, Arc::clone(&peer.flow));
    reply.accept().await;
    let (outside, inside) = tokio::io::duplex(BUFFER);
    let inner = Peer::new(Arc::clone(&peer.gateway), origin, peer.remote, peer.local);
    let inner = tokio::spawn(server::converse(inner, inside));
    carry(&mut inbox, &outlet, outside).await;
    let _ = outlet.close().await;
    // The inner connection sees the end of its stream and ends by itself.
    let _ = inner.await;
    drop(admission);
}

/// Not handed to the inner connection directly: a pause in one direction must
/// never stop the other.
async fn carry(inbox: &mut Inbox, outlet: &Outlet, stream: DuplexStream) {
    let (reader, writer) = tokio::io::split(stream);
    tokio::select! {
        _ = upstream::carry(inbox, writer, upstream::Form::Raw) => {}
        () = download(reader, outlet) => {}
    }
}

async fn download(mut reader: ReadHalf<DuplexStream>, outlet: &Outlet) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(BUFFER / 8);
        match reader.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if outlet.data(buffer.split().freeze()).await.is_err() {
            return;
        }
    }
}
