//! Limits on connections that have not logged in. A connection that comes too
//! soon waits for a place; one that waits too long is told so, and never dropped
//! in silence.

use berth_types::source;
use std::{
    borrow::Cow,
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore},
};

/// Shorter than the patience of scripts, longer than a burst.
const PATIENCE: Duration = Duration::from_secs(8);
/// Waiting costs a socket: as many connections may wait as may log in, this
/// many times. The first bound is for one address, the second for all.
const ADDRESS_QUEUE_FACTOR: u32 = 2;
const QUEUE_FACTOR: u32 = 4;
/// Connections that are being told why they are refused, at once.
const FAREWELLS_MAX: usize = 256;

const DISCONNECT: u8 = 1;
const TOO_MANY_CONNECTIONS: u32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    Address,
    All,
    /// The address failed too often, and is refused for so long.
    Refused(Duration),
}

impl Busy {
    pub fn line(self) -> Cow<'static, str> {
        match self {
            Self::Address => {
                "berth: too many logins at once from your address: try again in a few seconds".into()
            }
            Self::All => "berth: too many logins at once: try again in a few seconds".into(),
            Self::Refused(left) => format!(
                "berth: too many logins failed from your address: try again in {} seconds",
                left.as_secs() + 1
            )
            .into(),
        }
    }

    /// For the audit log.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Address => "too many logins at once from its address",
            Self::All => "too many logins at once",
            Self::Refused(_) => "too many logins failed from its address",
        }
    }
}

#[derive(Debug)]
pub struct Limits {
    all: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    per_address: u32,
    addresses: Addresses,
    /// Places for telling a connection why it is refused.
    pub farewells: Arc<Semaphore>,
}

type Addresses = Arc<Mutex<HashMap<IpAddr, Arc<Line>>>>;

/// The connections of one address that have not logged in.
#[derive(Debug)]
struct Line {
    places: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

/// A place among the connections that are logging in.
#[derive(Debug)]
pub struct Permit {
    _all: OwnedSemaphorePermit,
    _address: Turn,
}

/// A place in the line of one address; the line goes with its last turn.
#[derive(Debug)]
struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    line: Option<Arc<Line>>,
    key: IpAddr,
    addresses: Addresses,
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
            all: semaphore(all),
            queue: semaphore(all.saturating_mul(QUEUE_FACTOR)),
            per_address,
            addresses: Arc::default(),
            farewells: Arc::new(Semaphore::new(FAREWELLS_MAX)),
        }
    }

    /// Waits for a place. The queue and the places of the address come before
    /// those of all, so a crowd from one address fills only its own.
    pub async fn admit(&self, address: IpAddr) -> Result<Permit, Busy> {
        let (line, mut turn) = self.turn(address);
        let Ok(_queued_at_address) = Arc::clone(&line.queue).try_acquire_owned() else {
            return Err(Busy::Address);
        };
        let Ok(_queued) = Arc::clone(&self.queue).try_acquire_owned() else { return Err(Busy::All) };
        let waiting = tokio::time::timeout(PATIENCE, Arc::clone(&line.places).acquire_owned());
        turn.permit = waiting.await.ok().and_then(Result::ok);
        if turn.permit.is_none() {
            return Err(Busy::Address);
        }
        match tokio::time::timeout(PATIENCE, Arc::clone(&self.all).acquire_owned()).await {
            Ok(Ok(all)) => Ok(Permit { _all: all, _address: turn }),
            _ => Err(Busy::All),
        }
    }

    fn turn(&self, address: IpAddr) -> (Arc<Line>, Turn) {
        let key = source(address);
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let line = addresses.entry(key).or_insert_with(|| {
            let queue = self.per_address.saturating_mul(ADDRESS_QUEUE_FACTOR);
            Arc::new(Line { places: semaphore(self.per_address), queue: semaphore(queue) })
        });
        let line = Arc::clone(line);
        let turn =
            Turn { permit: None, line: Some(Arc::clone(&line)), key, addresses: Arc::clone(&self.addresses) };
        (line, turn)
    }
}

fn semaphore(places: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(places as usize))
}

/// Says why, in the form that `ssh` shows: a disconnect message before any key
/// exchange.
pub async fn turn_away<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, identification: &str, busy: Busy) {
    let say = async {
        stream.write_all(format!("{identification}\r\n").as_bytes()).await?;
        stream.write_all(&disconnect(TOO_MANY_CONNECTIONS, &busy.line())).await?;
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
    async fn a_crowd_from_one_address_leaves_the_queue_to_others() {
        let limits = Arc::new(Limits::new(4, 2));
        let crowd: IpAddr = "10.0.0.1".parse().unwrap();
        let mut held = Vec::new();
        for _ in 0..2 {
            held.push(limits.admit(crowd).await.unwrap());
        }
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..1000 {
            let limits = Arc::clone(&limits);
            waiting.spawn(async move { limits.admit(crowd).await.map(drop) });
        }
        // The paused clock moves only when every one of them waits or has ended.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let bystander = limits.admit("10.0.0.2".parse().unwrap()).await;
        assert!(bystander.is_ok(), "the crowd took all places in the queue: {bystander:?}");
        while let Some(ended) = waiting.join_next().await {
            assert_eq!(ended.unwrap(), Err(Busy::Address));
        }
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
        for text in ["", "a", "berth: x", &Busy::All.line()] {
            assert_eq!(disconnect(12, text).len() % 8, 0);
        }
    }
}
