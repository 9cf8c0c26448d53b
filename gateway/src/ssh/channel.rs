//! One SSH channel, with flow control in both directions.
//!
//! russh refills a channel's receive window as soon as data arrives, not when
//! it is used, and its session loop waits for a channel that does not take its
//! messages: one machine that does not read would stall, and may deadlock, the
//! whole connection. So every channel here always takes what arrives into a
//! queue ([`Inbox`]), and [`Flow`] counts what is queued on the connection:
//! above a mark it shrinks the window that russh grants to two bytes at a time,
//! and those come slowly; below it the window is whole again. The connection
//! keeps moving; only what is sent into a machine that does not read slows to
//! a trickle.

use bytes::Bytes;
use russh::{
    Channel, ChannelId, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig,
    server::{Handle, Msg},
};
use std::{
    collections::VecDeque,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// What a client may send ahead on a channel.
pub const WINDOW: u32 = 2 << 20;
/// Queued bytes on a connection above which windows are no longer refilled.
const HIGH: usize = 4 << 20;
/// russh refills when less than half of this is left: never, until the very
/// last byte, which is what brings the question back to us.
const TRICKLE: u32 = 2;
/// Between two drops. Without it they would come as fast as the network goes
/// and keep both ends busy; nothing else on the connection waits longer.
const DROP: Duration = Duration::from_millis(5);
/// No client that keeps to its window gets here; one that does not is made to
/// wait, and nobody else shares its connection.
const MOST: usize = 16 << 20;

/// The client has gone, or closed the channel.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client is gone")]
pub struct Gone;

/// What is queued on one connection.
#[derive(Debug, Default)]
pub struct Flow(AtomicUsize);

impl Flow {
    /// The window that the next refill grants.
    pub fn window(&self) -> u32 {
        if self.is_high() { TRICKLE } else { WINDOW }
    }

    /// Holds up data that comes a drop at a time.
    pub async fn slow_down(&self, length: usize) {
        if length <= TRICKLE as usize && self.is_high() {
            tokio::time::sleep(DROP).await;
        }
    }

    fn is_high(&self) -> bool {
        self.0.load(Ordering::Relaxed) > HIGH
    }
}

/// Bytes that count against a [`Flow`] until they are gone.
#[derive(Debug)]
pub struct Counted {
    flow: Arc<Flow>,
    bytes: usize,
}

impl Counted {
    pub const fn new(flow: Arc<Flow>) -> Self {
        Self { flow, bytes: 0 }
    }

    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.flow.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn remove(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.flow.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Is there more than any honest client sends?
    pub const fn is_full(&self) -> bool {
        self.bytes > MOST
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.remove(self.bytes);
    }
}

/// What the client sends on a channel, taken off russh's hands at all times.
#[derive(Debug)]
pub struct Inbox {
    reader: ChannelReadHalf,
    stash: VecDeque<ChannelMsg>,
    counted: Counted,
}

impl Inbox {
    pub fn flow(&self) -> Arc<Flow> {
        Arc::clone(&self.counted.flow)
    }

    /// Waits for `work` and keeps what arrives meanwhile.
    pub async fn during<F: Future>(&mut self, work: F) -> Result<F::Output, Gone> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                output = &mut work => return Ok(output),
                message = self.reader.wait(), if !self.counted.is_full() => {
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
}

impl Outlet {
    pub fn id(&self) -> ChannelId {
        self.writer.id()
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
    let inbox = Inbox { reader, stash: VecDeque::new(), counted: Counted::new(flow) };
    (inbox, Outlet { writer, handle })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_trickles_and_a_drained_one_flows() {
        let flow = Arc::new(Flow::default());
        let mut counted = Counted::new(Arc::clone(&flow));
        assert_eq!(flow.window(), WINDOW);
        counted.add(HIGH + 1);
        assert_eq!(flow.window(), TRICKLE);
        counted.remove(1);
        assert_eq!(flow.window(), WINDOW);
        counted.add(HIGH);
        drop(counted);
        assert_eq!(flow.0.load(Ordering::Relaxed), 0);
    }
}
