//! The client: HTTP/1.1 over TLS, by whichever way. One thread has all connections, as
//! load generators do: to wake one for each answer would cost whoever sends it.

use crate::support::{World, tls};
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
use std::{
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// How the server is reached.
#[derive(Clone)]
pub enum Way {
    /// From the host's namespace, over the same link as the bridge.
    Direct,
    Bridge,
    /// From the host's namespace to a proxy there, which has an authority of its own.
    Proxy {
        address: &'static str,
        authority: String,
    },
}

impl Way {
    pub fn connect(&self, world: &World, to: &str) -> TcpStream {
        let stream = self.inside(world, || TcpStream::connect(self.target(to)).unwrap());
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// What a request to the server is: directly nobody puts the secret in.
    const fn request(&self) -> &'static [u8] {
        match self {
            Self::Direct => b"GET /open HTTP/1.1\r\nhost: api.example\r\n\r\n",
            Self::Bridge | Self::Proxy { .. } => b"GET / HTTP/1.1\r\nhost: api.example\r\n\r\n",
        }
    }

    /// On a thread whose sockets are made where the client is.
    pub fn inside<T: Send>(&self, world: &World, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Direct | Self::Proxy { .. } => world.host.run(work),
            Self::Bridge => world.guest.namespace.run(work),
        }
    }

    const fn target<'a>(&self, to: &'a str) -> &'a str {
        match self {
            Self::Direct | Self::Bridge => to,
            Self::Proxy { address, .. } => address,
        }
    }

    pub fn tls(&self, world: &World) -> Arc<ClientConfig> {
        let more: &[&str] = match self {
            Self::Proxy { authority, .. } => &[authority],
            Self::Direct | Self::Bridge => &[],
        };
        let mut config = tls::client(world, b"http/1.1", more);
        // Every new connection is a whole one.
        config.resumption = rustls::client::Resumption::disabled();
        Arc::new(config)
    }
}

/// In the calling thread's namespace, for whoever only reads.
pub fn open(
    way: &Way,
    tls: &Arc<ClientConfig>,
    to: &str,
    name: &'static str,
) -> StreamOwned<ClientConnection, TcpStream> {
    let stream = TcpStream::connect(way.target(to)).unwrap();
    let connection = ClientConnection::new(tls.clone(), ServerName::try_from(name).unwrap()).unwrap();
    StreamOwned::new(connection, stream)
}

pub type Tls = TlsStream<tokio::net::TcpStream>;

async fn connect(way: &Way, tls: &Arc<ClientConfig>) -> Tls {
    let stream = tokio::net::TcpStream::connect(way.target("198.51.100.10:443")).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from("api.example").unwrap();
    TlsConnector::from(tls.clone()).connect(name, stream).await.unwrap()
}

async fn ask(way: &Way, stream: &mut Tls) {
    stream.write_all(way.request()).await.unwrap();
    let (mut buffer, mut filled) = ([0u8; 4096], 0);
    while !is_whole(&buffer[..filled]) {
        let count = stream.read(&mut buffer[filled..]).await.unwrap();
        assert_ne!(count, 0, "the answer broke off");
        filled += count;
    }
    assert!(buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer[..filled]));
}

/// A head, and the body that it speaks of.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|part| part == b"\r\n\r\n") else { return false };
    let head = std::str::from_utf8(&answer[..end]).unwrap().to_ascii_lowercase();
    match head.split("content-length: ").nth(1) {
        Some(rest) => {
            let length: usize = rest.split("\r\n").next().unwrap().parse().unwrap();
            answer.len() >= end + 4 + length
        }
        None => answer.ends_with(b"0\r\n\r\n"),
    }
}

/// Requests in a second, by so many at once.
pub fn rate(world: &World, way: &Way, at_once: usize, kept: bool, spell: Duration) -> f64 {
    let tls = way.tls(world);
    let one = async || {
        let mut stream = connect(way, &tls).await;
        ask(way, &mut stream).await;
        let (start, mut count) = (Instant::now(), 0u64);
        while start.elapsed() < spell {
            if !kept {
                stream = connect(way, &tls).await;
            }
            ask(way, &mut stream).await;
            count += 1;
        }
        count
    };
    let all = || runtime().block_on(futures_util::future::join_all((0..at_once).map(|_| one())));
    way.inside(world, all).into_iter().sum::<u64>() as f64 / spell.as_secs_f64()
}

/// The times of requests one after the other, in µs.
pub fn times(world: &World, way: &Way, spell: Duration) -> Vec<f64> {
    let tls = way.tls(world);
    let times = async {
        let mut stream = connect(way, &tls).await;
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < spell {
            let asked = Instant::now();
            ask(way, &mut stream).await;
            times.push(asked.elapsed().as_secs_f64() * 1e6);
        }
        times
    };
    way.inside(world, || runtime().block_on(times))
}

/// Connections on which one request was made, and nothing since.
pub fn idle(world: &World, count: usize) -> (tokio::runtime::Runtime, Vec<Tls>) {
    let (tls, runtime) = (Way::Bridge.tls(world), runtime());
    let opening = async {
        let mut streams = Vec::new();
        for _ in 0..count {
            let mut stream = connect(&Way::Bridge, &tls).await;
            ask(&Way::Bridge, &mut stream).await;
            streams.push(stream);
        }
        streams
    };
    let streams = Way::Bridge.inside(world, || runtime.block_on(opening));
    (runtime, streams)
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
