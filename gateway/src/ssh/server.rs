//! Accepting connections and seeing them to their end.

use super::{
    Gateway,
    handler::Connection,
    limits::{self, Permit},
    peer::{Origin, Peer},
    prompt::Prompt,
};
use russh::Disconnect;
use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

/// How long a client that was told to go may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// Out of descriptors: connections end all the time, then there are some again.
const BREATHER: Duration = Duration::from_millis(100);

/// Serves until `stop`, then tells everyone and waits for them a moment.
pub async fn run(gateway: Arc<Gateway>, listeners: Vec<TcpListener>, stop: impl Future<Output = ()>) {
    let (stopping, stopped) = watch::channel(false);
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(Arc::clone(&gateway), listener, stopped.clone()));
    }
    stop.await;
    tracing::info!("stopping");
    stopping.send_replace(true);
    let _ = timeout(2 * FAREWELL, accepting.join_all()).await;
}

async fn accept(gateway: Arc<Gateway>, listener: TcpListener, stopped: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let mut over = stopped.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, remote)) => {
                    connections.spawn(connection(Arc::clone(&gateway), stream, remote, stopped.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(BREATHER).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = stop(&mut over) => break,
        }
    }
    drop(listener);
    connections.join_all().await;
}

async fn connection(
    gateway: Arc<Gateway>,
    stream: TcpStream,
    remote: SocketAddr,
    mut stopped: watch::Receiver<bool>,
) {
    let Ok(local) = stream.local_addr() else { return };
    let _ = stream.set_nodelay(true);
    let permit = match gateway.limits.admit(remote.ip()).await {
        Ok(permit) => permit,
        Err(busy) => {
            tracing::info!(%remote, ?busy, "turned away");
            let identification = concat!("SSH-2.0-berth_", env!("CARGO_PKG_VERSION"));
            return limits::turn_away(stream, identification, busy).await;
        }
    };
    // russh owns the stream until the client closes it; a second descriptor
    // lets us close it on a client that does not.
    let (stream, breaker) = match breaker(stream) {
        Ok(both) => both,
        Err(error) => return tracing::warn!(%error, "cannot serve a connection"),
    };
    let peer = Peer::new(gateway, Origin::Network, remote, local);
    hold(peer, Prompt::new(stream), Some(permit), stop(&mut stopped)).await;
    let _ = breaker.shutdown(std::net::Shutdown::Both);
}

async fn stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn breaker(stream: TcpStream) -> io::Result<(TcpStream, std::net::TcpStream)> {
    let stream = stream.into_std()?;
    let breaker = stream.try_clone()?;
    Ok((TcpStream::from_std(stream)?, breaker))
}

/// A connection inside another one's channel; it ends with that.
pub async fn converse<S>(peer: Peer, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    hold(peer, stream, None, std::future::pending()).await;
}

async fn hold<S>(peer: Peer, stream: S, permit: Option<Permit>, stop: impl Future<Output = ()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let peer = Arc::new(peer);
    let remote = peer.remote;
    let deadline = Instant::now() + peer.gateway.settings.login_grace.duration();
    let connection = Connection::new(Arc::clone(&peer), permit);
    let starting = russh::server::run_stream(Arc::clone(&peer.gateway.ssh), stream, connection);
    let running = match tokio::time::timeout_at(deadline, starting).await {
        Ok(Ok(running)) => running,
        Ok(Err(error)) => return tracing::debug!(%remote, %error, "no SSH"),
        Err(_) => return tracing::debug!(%remote, "no SSH in time"),
    };
    let handle = running.handle();
    let _ = peer.handle.set(handle.clone());
    tokio::pin!(running, stop);
    let farewell = loop {
        let waiting = peer.login.get().is_none();
        tokio::select! {
            ended = &mut running => {
                match ended {
                    Ok(()) => tracing::debug!(%remote, "disconnected"),
                    Err(error) => tracing::debug!(%remote, %error, "the connection broke"),
                }
                return;
            }
            () = sleep_until(deadline), if waiting => {
                if peer.login.get().is_none() {
                    break "the login took too long: connect again";
                }
            }
            () = &mut stop => break "the gateway is restarting: connect again in a moment",
        }
    };
    let told = handle.disconnect(Disconnect::ByApplication, format!("berth: {farewell}"), String::new());
    let _ = timeout(FAREWELL, async {
        let _ = told.await;
        let _ = running.await;
    })
    .await;
}
