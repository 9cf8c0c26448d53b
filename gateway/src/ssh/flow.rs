//! What clients have sent that machines have not read yet, and its bounds: for a
//! connection, for a user, for all.
//!
//! Two measures, for two kinds of clients. A client that keeps to its windows is
//! slowed by them: they begin small, grow while what they bring is taken, and
//! are not refilled above a mark. russh does not enforce windows, so the
//! connection of a client that ignores them is not read ([`Gate`]) until
//! machines have taken what is queued.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// What a client may send on a new channel.
pub const FIRST_WINDOW: u32 = 64 << 10;
/// The largest window; it carries 20 MB/s over 100 ms.
const WINDOW_MAX: u32 = 2 << 20;
/// All windows of a connection that have grown.
const WINDOWS: u32 = 8 << 20;
/// Queued bytes on a connection above which windows are no longer refilled.
const HIGH: usize = 4 << 20;
/// russh refills when less than half of this is left: never, until the very
/// last byte, which is what brings the question back to us.
const TRICKLE: u32 = 2;
/// Between two drops. Without it they would come as fast as the network goes
/// and keep both ends busy; nothing else on the connection waits longer.
const DROP: Duration = Duration::from_millis(5);
/// Queued bytes on a connection above which nothing is read from it. Only a client that
/// ignores its windows gets here, for each channel has its first window besides.
const MOST: usize = 16 << 20;
/// Between two looks at whether there is room again.
const PAUSE: Duration = Duration::from_millis(10);
/// What is read ahead from machines for all channels of a user, and for one.
const READ_AHEAD: usize = 8 << 20;
const READ_AHEAD_MAX: usize = 256 << 10;
const READ_AHEAD_MIN: usize = 8 << 10;

/// What several connections share: those of a user, or all.
#[derive(Debug)]
pub struct Budget {
    most: usize,
    queued: AtomicUsize,
    channels: AtomicU32,
}

impl Budget {
    pub const fn new(most: usize) -> Self {
        Self { most, queued: AtomicUsize::new(0), channels: AtomicU32::new(0) }
    }

    fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// One more channel, if there are not so many yet.
    pub fn open_channel(&self, most: u32) -> bool {
        count_up(&self.channels, most)
    }

    pub fn close_channel(&self) {
        self.channels.fetch_sub(1, Ordering::Relaxed);
    }
}

fn count_up(count: &AtomicU32, most: u32) -> bool {
    let more = |count| (count < most).then_some(count + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// One connection's part.
#[derive(Debug)]
pub struct Flow {
    queued: AtomicUsize,
    channels: AtomicU32,
    /// The next refill's.
    window: AtomicU32,
    all: Arc<Budget>,
    user: OnceLock<Arc<Budget>>,
}

impl Flow {
    pub const fn new(all: Arc<Budget>) -> Self {
        Self {
            queued: AtomicUsize::new(0),
            channels: AtomicU32::new(0),
            window: AtomicU32::new(FIRST_WINDOW),
            all,
            user: OnceLock::new(),
        }
    }

    /// Known when the login is, before there are channels.
    pub fn belongs_to(&self, user: Arc<Budget>) {
        let _ = self.user.set(user);
    }

    pub fn user(&self) -> Option<&Arc<Budget>> {
        self.user.get()
    }

    pub fn open_channel(&self, most: u32) -> bool {
        count_up(&self.channels, most)
    }

    pub fn close_channel(&self) {
        self.channels.fetch_sub(1, Ordering::Relaxed);
    }

    fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// The window that the next refill grants.
    pub fn window(&self) -> u32 {
        if self.is_high() {
            self.window.store(FIRST_WINDOW, Ordering::Relaxed);
            return TRICKLE;
        }
        let share = WINDOWS / self.channels.load(Ordering::Relaxed).max(1);
        let before = self.window.load(Ordering::Relaxed);
        // It grows while what came in the last one has been taken.
        let taken = self.queued() <= before as usize;
        let wanted = if taken { before.saturating_mul(2) } else { before };
        let window = wanted.min(share).clamp(FIRST_WINDOW, WINDOW_MAX);
        self.window.store(window, Ordering::Relaxed);
        window
    }

    /// Holds up data that comes a drop at a time.
    pub async fn slow_down(&self, length: usize) {
        if length <= TRICKLE as usize && self.is_high() {
            tokio::time::sleep(DROP).await;
        }
    }

    /// From half of a shared budget on, connections with much in it are slowed. One
    /// that has little queued never is: its machine reads.
    fn is_high(&self) -> bool {
        let own = self.queued();
        let shared = |budget: &Budget| own > FIRST_WINDOW as usize && budget.queued() > budget.most / 2;
        own > HIGH || self.user().is_some_and(|user| shared(user)) || shared(&self.all)
    }

    /// Is so much queued that nothing more may be read?
    fn is_full(&self) -> bool {
        let own = self.queued();
        let windows = self.channels.load(Ordering::Relaxed) as usize * FIRST_WINDOW as usize;
        let shared = |budget: &Budget| own > FIRST_WINDOW as usize && budget.queued() > budget.most;
        own > MOST + windows || self.user().is_some_and(|user| shared(user)) || shared(&self.all)
    }

    /// What one channel reads ahead from its machine: less when there are many.
    pub fn read_ahead(&self) -> usize {
        let channels = match self.user() {
            Some(user) => user.channels.load(Ordering::Relaxed),
            None => self.channels.load(Ordering::Relaxed),
        };
        (READ_AHEAD / (channels.max(1) as usize)).clamp(READ_AHEAD_MIN, READ_AHEAD_MAX)
    }

    fn add(&self, bytes: usize) {
        for count in self.counts() {
            count.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn remove(&self, bytes: usize) {
        for count in self.counts() {
            count.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> impl Iterator<Item = &AtomicUsize> {
        let user = self.user().map(|user| &user.queued);
        [&self.queued, &self.all.queued].into_iter().chain(user)
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

    pub const fn flow(&self) -> &Arc<Flow> {
        &self.flow
    }

    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.flow.add(bytes);
    }

    pub fn remove(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.flow.remove(bytes);
    }

    pub fn clear(&mut self) {
        self.remove(self.bytes);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A connection's stream, which is not read from while its [`Flow`] is full.
#[derive(Debug)]
pub struct Gate<S> {
    stream: S,
    flow: Arc<Flow>,
    remote: SocketAddr,
    pause: Option<Pin<Box<Sleep>>>,
    noted: bool,
}

impl<S> Gate<S> {
    pub const fn new(stream: S, flow: Arc<Flow>, remote: SocketAddr) -> Self {
        Self { stream, flow, remote, pause: None, noted: false }
    }

    /// In the log, once for a connection.
    fn note(&mut self) {
        if !self.noted {
            self.noted = true;
            let (remote, queued) = (self.remote, self.flow.queued());
            tracing::warn!(%remote, queued, "a connection is not read until machines take what it has sent");
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gate<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.flow.is_full() {
            self.note();
            let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(PAUSE)));
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        self.pause = None;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gate<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn flow() -> Arc<Flow> {
        Arc::new(Flow::new(Arc::new(Budget::new(64 << 20))))
    }

    fn of(user: &Arc<Budget>, all: &Arc<Budget>) -> Arc<Flow> {
        let flow = Arc::new(Flow::new(Arc::clone(all)));
        flow.belongs_to(Arc::clone(user));
        flow
    }

    #[test]
    fn a_full_queue_trickles_and_a_drained_one_flows() {
        let flow = flow();
        let mut counted = Counted::new(Arc::clone(&flow));
        assert_eq!(flow.window(), 2 * FIRST_WINDOW);
        counted.add(HIGH + 1);
        assert_eq!(flow.window(), TRICKLE);
        counted.clear();
        assert_eq!(flow.window(), 2 * FIRST_WINDOW);
        counted.add(HIGH);
        drop(counted);
        assert_eq!((flow.queued(), flow.all.queued()), (0, 0));
    }

    #[test]
    fn windows_grow_while_what_they_bring_is_taken() {
        let flow = flow();
        let grown: Vec<u32> = (0..8).map(|_| flow.window() / FIRST_WINDOW).collect();
        assert_eq!(grown, [2, 4, 8, 16, 32, 32, 32, 32]);
        let slow = self::flow();
        let mut counted = Counted::new(Arc::clone(&slow));
        counted.add(FIRST_WINDOW as usize + 1);
        assert_eq!((0..8).map(|_| slow.window()).max(), Some(FIRST_WINDOW), "the machine does not read");
        // Of a thousand channels each has its first window and no more.
        assert!((0..1000).all(|_| flow.open_channel(1000)) && !flow.open_channel(1000));
        assert_eq!(flow.window(), FIRST_WINDOW);
    }

    #[test]
    fn a_full_budget_of_one_user_leaves_other_users_theirs() {
        let all = Arc::new(Budget::new(64 << 20));
        let (ann, bob) = (Arc::new(Budget::new(16 << 20)), Arc::new(Budget::new(16 << 20)));
        let (first, second, bystander) = (of(&ann, &all), of(&ann, &all), of(&bob, &all));
        let mut queued: Vec<Counted> =
            [&first, &second].into_iter().map(|flow| Counted::new(Arc::clone(flow))).collect();
        for counted in &mut queued {
            counted.add(9 << 20);
        }
        assert!(first.is_full() && second.is_full(), "more than one user may have");
        let mut little = Counted::new(Arc::clone(&bystander));
        little.add(3 << 20);
        assert!(!bystander.is_full() && !bystander.is_high());
        queued.clear();
        assert!(!first.is_full() && ann.queued() == 0);
        // The common budget is full: a connection that has little queued goes on.
        let mut everything = Counted::new(of(&Arc::new(Budget::new(1 << 30)), &all));
        everything.add(65 << 20);
        assert!(bystander.is_full());
        little.remove(3 << 20);
        assert!(!bystander.is_full() && !bystander.is_high());
    }

    #[test]
    fn many_channels_read_ahead_little() {
        let flow = flow();
        assert_eq!(flow.read_ahead(), READ_AHEAD_MAX);
        let user = Arc::new(Budget::new(1 << 20));
        flow.belongs_to(Arc::clone(&user));
        assert!((0..1000).all(|_| user.open_channel(5000)));
        assert!(flow.read_ahead() * 1000 <= READ_AHEAD + 1000 * READ_AHEAD_MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_not_read_while_its_flow_is_full() {
        let flow = flow();
        let (mut client, server) = tokio::io::duplex(64);
        let mut gate = Gate::new(server, Arc::clone(&flow), ([192, 0, 2, 1], 1).into());
        let mut counted = Counted::new(Arc::clone(&flow));
        counted.add(MOST + 1);
        client.write_all(b"more").await.unwrap();
        let mut buffer = [0; 4];
        let read = tokio::time::timeout(Duration::from_secs(60), gate.read_exact(&mut buffer)).await;
        assert!(read.is_err(), "it was read");
        gate.write_all(b"answer").await.unwrap();
        client.read_exact(&mut [0; 6]).await.unwrap();
        counted.remove(2);
        gate.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"more");
    }
}
