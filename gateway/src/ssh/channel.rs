//! One SSH channel, with flow control in both directions.
//!
//! russh refills a channel's receive window as soon as data arrives, not when
//! it is used, and its session loop waits for a channel that does not take its
//! messages: one machine that does not read would stall, and may deadlock, the
//! whole connection. So every channel here always takes what arrives into a
//! queue ([`Inbox`]), and [`Flow`] counts what is queued on
//! the connection: above a mark it shrinks the window that russh grants to two
//! bytes at a time, and those come slowly; below it the window is whole again.
//! The connection keeps moving; only what is sent into a machine that does not
//! read slows to a trickle.

use super::flow::{Counted, Flow};
use bytes::Bytes;
use russh::{
    Channel, ChannelId, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig,
    server::{Handle, Msg},
};
use std::{collections::VecDeque, future::Future, sync::Arc};

/// The client has gone, or closed the channel.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client is gone")]
pub struct Gone;

/// What the client sends on a channel, taken off russh's hands at all times.
#[derive(Debug)]
pub struct Inbox {
    reader: ChannelReadHalf,
    stash: VecDeque<ChannelMsg>,
    counted: Counted,
}

impl Inbox {
    pub fn flow(&self) -> Arc<Flow> {
        Arc::clone(self.counted.flow())
    }

    /// Waits for `work` and keeps what arrives meanwhile.
    pub async fn during<F: Future>(&mut self, work: F) -> Result<F::Output, Gone> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                output = &mut work => return Ok(output),
                message = self.reader.wait() => {
                    let message = open(message)?;
                    self.counted.add(length(&message));
                    self.stash.push_back(message);
                }
            }
        }
    }

    /// The next message; safe to cancel.
    pub async fn next(&mut self) -> Result<ChannelMsg, Gone> {
        if let Some(message) = self.stash.pop_front() {
            self.counted.remove(length(&message));
            return Ok(message);
        }
        open(self.reader.wait().await)
    }
}

fn open(message: Option<ChannelMsg>) -> Result<ChannelMsg, Gone> {
    match message {
        None | Some(ChannelMsg::Close) => Err(Gone),
        Some(message) => Ok(message),
    }
}

/// What a message costs to keep.
fn length(message: &ChannelMsg) -> usize {
    let data = match message {
        ChannelMsg::Data { data } | ChannelMsg::ExtendedData { data, .. } => data.len(),
        _ => 0,
    };
    data + size_of::<ChannelMsg>()
}

/// What goes to the client on a channel. Waits for the client's window.
#[derive(Debug)]
pub struct Outlet {
    writer: ChannelWriteHalf<Msg>,
    handle: Handle,
    flow: Arc<Flow>,
}

impl Outlet {
    pub fn id(&self) -> ChannelId {
        self.writer.id()
    }

    /// What may be read ahead of the client for this channel.
    pub fn read_ahead(&self) -> usize {
        self.flow.read_ahead()
    }

    pub async fn data(&self, data: Bytes) -> Result<(), Gone> {
        self.writer.data_bytes(data).await.map_err(|_| Gone)
    }

    pub async fn errors(&self, data: Bytes) -> Result<(), Gone> {
        self.writer.extended_data_bytes(1, data).await.map_err(|_| Gone)
    }

    pub async fn eof(&self) -> Result<(), Gone> {
        self.writer.eof().await.map_err(|_| Gone)
    }

    pub async fn exit_status(&self, status: u8) -> Result<(), Gone> {
        self.writer.exit_status(u32::from(status)).await.map_err(|_| Gone)
    }

    pub async fn exit_signal(&self, name: String, core: bool) -> Result<(), Gone> {
        let (text, language) = (String::new(), String::new());
        self.handle
            .exit_signal_request(self.id(), Sig::Custom(name), core, text, language)
            .await
            .map_err(|()| Gone)
    }

    pub async fn close(&self) -> Result<(), Gone> {
        self.writer.close().await.map_err(|_| Gone)
    }
}

pub fn split(channel: Channel<Msg>, handle: Handle, flow: Arc<Flow>) -> (Inbox, Outlet) {
    let (reader, writer) = channel.split();
    let inbox = Inbox { reader, stash: VecDeque::new(), counted: Counted::new(Arc::clone(&flow)) };
    (inbox, Outlet { writer, handle, flow })
}
