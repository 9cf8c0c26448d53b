//! Does the service answer? Asked until it does: neither a listener nor a
//! daemon's readiness can be waited for from outside.

use super::{
    place::Place,
    probe::{self, Obstacle},
    reach,
};
use crate::{api, context::Context};
use berth_api::Client;
use berth_types::{Code, Refusal};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    time::{self, Instant},
};

const BETWEEN: Duration = Duration::from_millis(50);
/// hostd may be starting again just now.
const SETTLES: Duration = Duration::from_secs(15);
/// A listener that accepts but says nothing for this long is not well.
const BANNER: Duration = Duration::from_secs(5);

pub async fn hostd(context: &Context) {
    let client = Client::new(context.config.service.api_socket());
    while api::status(&client).await.is_none() {
        time::sleep(BETWEEN).await;
    }
}

/// Until a login at each of the gateway's addresses comes through to hostd. What stands in
/// the way is told when it has stood there for a while, or the limit is over.
pub async fn gateway(context: &Context, limit: Duration) -> Result<(), Refusal> {
    let client = Client::new(context.config.service.api_socket());
    let end = Instant::now() + limit;
    for address in context.config.gateway.listen.iter().map(reachable) {
        let mut stands: Option<Instant> = None;
        while let Err(obstacle) = probe::log_in(&client, address).await {
            let now = Instant::now();
            stands = obstacle.is_answer().then(|| stands.unwrap_or(now));
            if now >= end || stands.is_some_and(|since| now - since >= SETTLES) {
                return Err(in_the_way(context, address, &obstacle));
            }
            time::sleep(BETWEEN).await;
        }
    }
    Ok(())
}

fn in_the_way(context: &Context, address: SocketAddr, obstacle: &Obstacle) -> Refusal {
    if let Err(refusal) = reach::check(context) {
        return refusal;
    }
    let message = format!("no login at {address} comes through: {obstacle}");
    Refusal::new(Code::Failed, message, "the gateway's and hostd's last lines may say why")
}

/// Waits for the supervisor's word, and then for the service itself.
pub async fn all(context: &Context, place: &Place, limit: Duration) -> Result<(), Refusal> {
    while !place.is_ready() {
        time::sleep(BETWEEN).await;
    }
    hostd(context).await;
    gateway(context, limit).await
}

/// Do both answer now, whoever started them?
pub async fn now(context: &Context) -> bool {
    let client = Client::new(context.config.service.api_socket());
    let Some(address) = context.config.gateway.listen.first().map(reachable) else { return false };
    api::status(&client).await.is_some() && greets(address).await
}

async fn greets(address: SocketAddr) -> bool {
    let greeting = async {
        let mut stream = TcpStream::connect(address).await?;
        let mut banner = [0; 4];
        stream.read_exact(&mut banner).await?;
        std::io::Result::Ok(&banner == b"SSH-")
    };
    matches!(time::timeout(BANNER, greeting).await, Ok(Ok(true)))
}

/// A listener on every address is reached on this host's own.
fn reachable(listener: &SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{io::AsyncWriteExt, net::TcpListener};

    #[test]
    fn every_address_is_reached_on_loopback() {
        assert_eq!(reachable(&"0.0.0.0:22".parse().unwrap()), "127.0.0.1:22".parse().unwrap());
        assert_eq!(reachable(&"[::]:22".parse().unwrap()), "[::1]:22".parse().unwrap());
        assert_eq!(reachable(&"192.0.2.1:22".parse().unwrap()), "192.0.2.1:22".parse().unwrap());
    }

    #[tokio::test]
    async fn only_an_ssh_server_greets() {
        for (greeting, expected) in [("SSH-2.0-berth\r\n", true), ("HTTP/1.1 400\r\n", false), ("", false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let server = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(greeting.as_bytes()).await.unwrap();
            };
            assert_eq!(tokio::join!(greets(address), server).0, expected, "{greeting}");
            drop(listener);
            assert!(!greets(address).await);
        }
    }
}
