//! Limits on connections that have not logged in. Who comes too soon waits for
//! a place; who waits too long is told so, and never dropped in silence.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore},
};

/// Shorter than the patience of scripts, longer than a burst.
const PATIENCE: Duration = Duration::from_secs(8);
/// Waiting costs a socket: as many may wait as may log in, this many times.
const QUEUE_FACTOR: u32 = 4;

const DISCONNECT: u8 = 1;
const TOO_MANY_CONNECTIONS: u32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    Address,
    All,
}

impl Busy {
    pub const fn line(self) -> &'static str {
        match self {
            Self::Address => "berth: too many logins at once from your address: try again in a few seconds",
            Self::All => "berth: too many logins at once: try again in a few seconds",
        }
    }
}

#[derive(Debug)]
pub struct Limits {
    all: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    per_address: usize,
    addresses: Arc<Mutex<HashMap<IpAddr, Arc<Semaphore>>>>,
}

/// A place among those who are logging in.
#[derive(Debug)]
pub struct Permit {
    _all: OwnedSemaphorePermit,
    _address: Turn,
}

/// A place in the line of one address; the line goes when nobody stands in it.
#[derive(Debug)]
struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    line: Option<Arc<Semaphore>>,
    key: IpAddr,
    addresses: Arc<Mutex<HashMap<IpAddr, Arc<Semaphore>>>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.permit = None;
        self.line = None;
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.get(&self.key).is_some_and(|line| Arc::strong_count(line) == 1) {
            addresses.remove(&self.key);
        }
    }
}

impl Limits {
    pub fn new(all: u32, per_address: u32) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all as usize)),
            queue: Arc::new(Semaphore::new(all.saturating_mul(QUEUE_FACTOR) as usize)),
            per_address: per_address as usize,
            addresses: Arc::default(),
        }
    }

    /// Waits for a place; the address's own line first, so that it holds up
    /// nobody else.
    pub async fn admit(&self, address: IpAddr) -> Result<Permit, Busy> {
        let Ok(_queued) = Arc::clone(&self.queue).try_acquire_owned() else { return Err(Busy::All) };
        let line = self.line(address);
        let mut turn = Turn {
            permit: None,
            line: Some(Arc::clone(&line)),
            key: key(address),
            addresses: Arc::clone(&self.addresses),
        };
        let waiting = tokio::time::timeout(PATIENCE, line.acquire_owned());
        turn.permit = waiting.await.ok().and_then(Result::ok);
        if turn.permit.is_none() {
            return Err(Busy::Address);
        }
        match tokio::time::timeout(PATIENCE, Arc::clone(&self.all).acquire_owned()).await {
            Ok(Ok(all)) => Ok(Permit { _all: all, _address: turn }),
            _ => Err(Busy::All),
        }
    }

    fn line(&self, address: IpAddr) -> Arc<Semaphore> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let line =
            addresses.entry(key(address)).or_insert_with(|| Arc::new(Semaphore::new(self.per_address)));
        Arc::clone(line)
    }
}

/// One household has 2^64 IPv6 addresses: they count as one.
fn key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

/// Says why, in the form that `ssh` shows: a disconnect message before any key
/// exchange.
pub async fn turn_away<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, identification: &str, busy: Busy) {
    let say = async {
        stream.write_all(format!("{identification}\r\n").as_bytes()).await?;
        stream.write_all(&disconnect(TOO_MANY_CONNECTIONS, busy.line())).await?;
        stream.shutdown().await?;
        // Closing with the client's words unread would reset the connection
        // and take ours with it.
        let mut rest = [0u8; 4096];
        while stream.read(&mut rest).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), say).await;
}

/// RFC 4253 sections 6 and 11.1, before encryption.
fn disconnect(reason: u32, text: &str) -> Vec<u8> {
    let mut payload = vec![DISCONNECT];
    payload.extend(reason.to_be_bytes());
    payload.extend(u32::try_from(text.len()).unwrap_or(0).to_be_bytes());
    payload.extend(text.as_bytes());
    payload.extend(0u32.to_be_bytes());
    // Length, padding length and payload fill blocks of 8, with 4 of padding at least.
    let padding = 4 + (8 - (5 + payload.len() + 4) % 8) % 8;
    let mut packet = u32::try_from(1 + payload.len() + padding).unwrap_or(0).to_be_bytes().to_vec();
    packet.push(u8::try_from(padding).unwrap_or(0));
    packet.extend(payload);
    packet.resize(packet.len() + padding, 0);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_address_waits_for_itself_only() {
        let limits = Limits::new(3, 1);
        let (one, two) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let held = limits.admit(one).await.unwrap();
        assert_eq!(limits.admit(one).await.unwrap_err(), Busy::Address);
        let _other = limits.admit(two).await.unwrap();
        let (admitted, ()) = tokio::join!(limits.admit(one), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(held);
        });
        assert!(admitted.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn lines_that_nobody_stands_in_are_forgotten() {
        let limits = Limits::new(1, 2);
        let address = "2001:db8::1".parse().unwrap();
        let held = limits.admit(address).await.unwrap();
        assert_eq!(limits.admit("2001:db8::2".parse().unwrap()).await.unwrap_err(), Busy::All);
        assert_eq!(limits.addresses.lock().unwrap().len(), 1);
        drop(held);
        assert_eq!(limits.addresses.lock().unwrap().len(), 0);
    }

    #[test]
    fn a_disconnect_is_whole_blocks() {
        for text in ["", "a", "berth: x", Busy::All.line()] {
            assert_eq!(disconnect(12, text).len() % 8, 0);
        }
    }
}
