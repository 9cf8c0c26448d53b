//! Plain byte streams: forwards in both directions, agents, jumps.

use super::upstream;
use crate::ssh::{
    channel::{self, Gone, Inbox, Outlet},
    peer::{Admission, Peer},
};
use berth_guest_client::{Frames, GuestError, Stream};
use berth_guest_protocol::{Open, Target};
use berth_types::Refusal;
use russh::{
    Channel, ChannelOpenFailure,
    server::{ChannelOpenHandle, Msg},
};
use std::sync::Arc;

/// A channel that the client asks to be opened.
#[derive(Debug)]
pub struct Asked {
    pub channel: Channel<Msg>,
    pub admission: Admission,
}

/// `-L`, `-D`, `-W`: dials inside the machine, and only there.
pub async fn dial(peer: Arc<Peer>, asked: Asked, reply: ChannelOpenHandle, target: Target) {
    let Some(handle) = peer.handle.get().cloned() else { return };
    let Asked { channel, admission } = asked;
    let (mut inbox, outlet) = channel::split(channel, handle, Arc::clone(&peer.flow));
    let connecting = async {
        let place = peer.place().await?;
        super::open(&peer, &place, Open::Connect(target)).await
    };
    match inbox.during(connecting).await {
        Ok(Ok(stream)) => {
            reply.accept().await;
            carry(inbox, outlet, stream).await;
        }
        Ok(Err(refusal)) => reply.reject(failure(&refusal)).await,
        Err(Gone) => {}
    }
    drop(admission);
}

/// The client's ssh prints this after `open failed:`.
pub fn failure(refusal: &Refusal) -> ChannelOpenFailure {
    let code = ChannelOpenFailure::ConnectFailed.code();
    ChannelOpenFailure::Other { code, reason: format!("berth: {refusal}") }
}

/// Carries both directions until both have ended, or the client is gone.
pub async fn carry(mut inbox: Inbox, outlet: Outlet, stream: Stream) {
    let Stream { mut frames, writer, .. } = stream;
    let mut down = std::pin::pin!(download(&mut frames, &outlet));
    let client_ended = {
        let mut up = std::pin::pin!(upstream::carry(&mut inbox, writer, upstream::Form::Raw));
        tokio::select! {
            ended = &mut up => ended.is_ok(),
            ended = &mut down => {
                // The machine has ended its direction; the client may go on.
                if ended.is_ok_and(|clean| clean) {
                    let _ = up.await;
                }
                false
            }
        }
    };
    if client_ended {
        let _ = inbox.during(down).await;
    }
    let _ = outlet.close().await;
}

/// True after a clean end, false after a broken one: then all is over.
async fn download(frames: &mut Frames, outlet: &Outlet) -> Result<bool, Gone> {
    loop {
        frames.read_ahead(outlet.read_ahead());
        match frames.raw().await {
            Ok(data) => outlet.data(data).await?,
            Err(GuestError::Ended) => return outlet.eof().await.map(|()| true),
            Err(error) => {
                tracing::debug!(%error, "a forward broke");
                return Ok(false);
            }
        }
    }
}
