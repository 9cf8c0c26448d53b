//! Accepting connections and seeing them to their end.

use super::{
    Gateway,
    flow::Gate,
    handler::Connection,
    limits::{self, Busy, Permit},
    peer::{Origin, Peer},
    penalties::Offence,
    prompt::Prompt,
    sessions, turned_away,
};
use berth_api::Request;
use berth_types::Code;
use russh::Disconnect;
use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

/// How long a client that was told to go may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// The same where the access was taken away: the connection ends anyway.
const EXPULSION: Duration = Duration::from_millis(300);
/// Out of descriptors: connections end all the time, then there are some again.
const BREATHER: Duration = Duration::from_millis(100);

/// Serves until `stop`, then tells everyone and waits for them a moment.
pub async fn run(gateway: Arc<Gateway>, listeners: Vec<TcpListener>, stop: impl Future<Output = ()>) {
    let (stopping, stopped) = watch::channel(false);
    let watching = tokio::spawn(sessions::watch(Arc::clone(&gateway)));
    let counting = Arc::clone(&gateway);
    let reporting = tokio::spawn(async move { turned_away::report(&counting).await });
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(Arc::clone(&gateway), listener, stopped.clone()));
    }
    stop.await;
    tracing::info!("stopping");
    stopping.send_replace(true);
    let _ = timeout(2 * FAREWELL, accepting.join_all()).await;
    watching.abort();
    reporting.abort();
    let _ = timeout(FAREWELL, turned_away::report_the_rest(&gateway)).await;
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
    let admitted = match gateway.penalties.refused(remote.ip()) {
        Some(left) => Err(Busy::Refused(left)),
        None => gateway.limits.admit(remote.ip()).await,
    };
    let permit = match admitted {
        Ok(permit) => permit,
        Err(busy) => return turn_away(&gateway, stream, remote, busy).await,
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

/// Tells a connection why it is refused. In a flood there are not enough places
/// for that, and the connection just ends. All are counted, for the audit log.
async fn turn_away(gateway: &Gateway, stream: TcpStream, remote: SocketAddr, busy: Busy) {
    let report = gateway.turned_away.add(remote.ip().to_canonical(), busy);
    let telling = async {
        let Ok(_place) = gateway.limits.farewells.try_acquire() else { return };
        let identification = concat!("SSH-2.0-berth_", env!("CARGO_PKG_VERSION"));
        limits::turn_away(stream, identification, busy).await;
    };
    let reporting = async {
        if let Some(report) = report {
            report.send(gateway).await;
        }
    };
    tokio::join!(telling, reporting);
}

/// What a connection did that ended without a login; hostd's absence, a restart and
/// the other connections of its user are not its fault.
async fn punish(peer: &Peer, offence: Option<Offence>) {
    let Some(offence) = offence else { return };
    let from_network = matches!(peer.origin, Origin::Network);
    let forgiven = peer.refused.get().is_some_and(|refusal| refusal.code != Code::Limit);
    let own = peer.asks_ready.load(Ordering::Relaxed);
    let forgiven = forgiven || peer.is_one_too_many.load(Ordering::Relaxed);
    if own || !from_network || peer.login.get().is_some() || forgiven {
        return;
    }
    let address = peer.remote.ip().to_canonical();
    let refused = peer.gateway.penalties.add(address, offence);
    if refused {
        tracing::warn!(%address, ?offence, "too many logins failed: refused for a while");
    }
    let noted = peer.noted.load(Ordering::Relaxed) || offence == Offence::NoAttempt;
    if refused || !noted {
        let also = if refused { "; the address is refused for a while" } else { "" };
        let reason = format!("{}{also}", offence.words());
        let _ = peer.ask(Request::LoginFailed { address, fingerprint: peer.offered(), reason }).await;
    }
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
    let offence = converse_to_the_end(&peer, stream, permit, stop).await;
    peer.leave();
    punish(&peer, offence).await;
}

/// Returns what a client did wrong that has not logged in.
async fn converse_to_the_end<S>(
    peer: &Arc<Peer>,
    stream: S,
    permit: Option<Permit>,
    stop: impl Future<Output = ()>,
) -> Option<Offence>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let remote = peer.remote;
    let deadline = Instant::now() + peer.gateway.settings.login_grace.duration();
    let connection = Connection::new(Arc::clone(peer), permit);
    let gated = Gate::new(stream, Arc::clone(&peer.flow), remote);
    let starting = russh::server::run_stream(Arc::clone(&peer.gateway.ssh), gated, connection);
    let running = match tokio::time::timeout_at(deadline, starting).await {
        Ok(Ok(running)) => running,
        Ok(Err(error)) => {
            tracing::debug!(%remote, %error, "no SSH");
            return Some(Offence::NoAttempt);
        }
        Err(_) => {
            tracing::debug!(%remote, "no SSH in time");
            return Some(Offence::TooSlow);
        }
    };
    let handle = running.handle();
    let _ = peer.handle.set(handle.clone());
    tokio::pin!(running, stop);
    let (farewell, offence, patience) = loop {
        let waiting = peer.login.get().is_none();
        tokio::select! {
            ended = &mut running => {
                match ended {
                    Ok(()) => tracing::debug!(%remote, "disconnected"),
                    Err(error) => tracing::debug!(%remote, %error, "the connection broke"),
                }
                return Some(if peer.offered().is_some() { Offence::Failed } else { Offence::NoAttempt });
            }
            () = sleep_until(deadline), if waiting => {
                if peer.login.get().is_none() {
                    break ("the login took too long: connect again".into(), Some(Offence::TooSlow), FAREWELL);
                }
            }
            refusal = peer.ended() => break (refusal.to_string(), None, EXPULSION),
            () = &mut stop => {
                break ("the gateway is restarting: connect again in a moment".into(), None, FAREWELL);
            }
        }
    };
    let told = handle.disconnect(Disconnect::ByApplication, format!("berth: {farewell}"), String::new());
    let _ = timeout(patience, async {
        let _ = told.await;
        let _ = running.await;
    })
    .await;
    offence
}
