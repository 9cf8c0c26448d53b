//! The client: HTTP/1.1 over TLS, by whichever way.

use crate::support::{World, tls};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::{
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_rustls::TlsConnector;

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

    /// On a thread whose sockets are made where the client is.
    fn inside<T: Send>(&self, world: &World, work: impl FnOnce() -> T + Send) -> T {
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

    fn tls(&self, world: &World) -> TlsConnector {
        let more: &[&str] = match self {
            Self::Proxy { authority, .. } => &[authority],
            Self::Direct | Self::Bridge => &[],
        };
        let mut config = tls::client(world, b"http/1.1", more);
        // Every new connection is a whole one.
        config.resumption = rustls::client::Resumption::disabled();
        TlsConnector::from(Arc::new(config))
    }
}

type Sender = http1::SendRequest<Empty<Bytes>>;

async fn open(way: &Way, tls: &TlsConnector) -> Sender {
    let stream = tokio::net::TcpStream::connect(way.target("198.51.100.10:443")).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from("api.example").unwrap();
    let stream = tls.connect(name, stream).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn ask(sender: &mut Sender) {
    sender.ready().await.unwrap();
    let request = Request::get("/").header("host", "api.example").body(Empty::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.unwrap();
}

/// Requests in a second, by so many at once.
pub fn rate(world: &World, way: &Way, at_once: usize, kept: bool, spell: Duration) -> f64 {
    let tls = way.tls(world);
    let rate = async {
        let mut clients = Vec::new();
        for _ in 0..at_once {
            clients.push(async {
                let mut sender = open(way, &tls).await;
                let (start, mut count) = (Instant::now(), 0u64);
                while start.elapsed() < spell {
                    if !kept {
                        sender = open(way, &tls).await;
                    }
                    ask(&mut sender).await;
                    count += 1;
                }
                count
            });
        }
        futures_util::future::join_all(clients).await.into_iter().sum::<u64>()
    };
    let count = way.inside(world, || runtime().block_on(rate));
    count as f64 / spell.as_secs_f64()
}

/// The times of requests one after the other, in µs.
pub fn times(world: &World, way: &Way, spell: Duration) -> Vec<f64> {
    let tls = way.tls(world);
    let times = async {
        let mut sender = open(way, &tls).await;
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < spell {
            let asked = Instant::now();
            ask(&mut sender).await;
            times.push(asked.elapsed().as_secs_f64() * 1e6);
        }
        times
    };
    way.inside(world, || runtime().block_on(times))
}

/// Connections on which one request was made, and nothing since.
pub fn idle(world: &World, count: usize) -> (tokio::runtime::Runtime, Vec<Sender>) {
    let (tls, runtime) = (Way::Bridge.tls(world), runtime());
    let opening = async {
        let mut senders = Vec::new();
        for _ in 0..count {
            let mut sender = open(&Way::Bridge, &tls).await;
            ask(&mut sender).await;
            senders.push(sender);
        }
        senders
    };
    let senders = Way::Bridge.inside(world, || runtime.block_on(opening));
    (runtime, senders)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
