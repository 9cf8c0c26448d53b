//! A machine's listeners.

use crate::{
    bridge::{
        dial, dns,
        flow::{self, Connection},
        machine::Machine,
        packets,
    },
    control::{Listeners, Protocol},
};
use rustix::net::sockopt;
use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinSet,
};

/// Every kernel has it and lets everybody use it.
const CONGESTION: &str = "reno";

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tls,
    Http,
    Other,
    Dns,
}

pub fn start(machine: &Arc<Machine>, listeners: Listeners<OwnedFd>) -> io::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    for (socket, kind) in [
        (listeners.tls, Kind::Tls),
        (listeners.http, Kind::Http),
        (listeners.other, Kind::Other),
        (listeners.dns_tcp, Kind::Dns),
    ] {
        let listener = std::net::TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        // What is accepted inherits it. On the machine's own link nothing is ever lost
        // or late, and pacing, which the host may be set to, would only cost timers.
        if let Err(error) = sockopt::set_tcp_congestion(&listener, CONGESTION) {
            tracing::debug!(%error, "a machine's link keeps the host's congestion control");
        }
        tasks.spawn(accept(machine.clone(), TcpListener::from_std(listener)?, kind));
    }
    let socket = std::net::UdpSocket::from(listeners.dns_udp);
    socket.set_nonblocking(true)?;
    tasks.spawn(dns::udp(machine.clone(), UdpSocket::from_std(socket)?));
    tasks.spawn(packets::report(machine.clone(), packets::Shown::new(listeners.refused)?));
    Ok(tasks)
}

async fn accept(machine: Arc<Machine>, listener: TcpListener, kind: Kind) {
    let mut said = None::<Instant>;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: those of others end, too.
                tracing::warn!(%error, machine = %machine.id, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let limits = machine.host.shared().limits;
        let most = machine.host.room();
        let seat = machine.connections.admit(most);
        let half_open = machine.half_open.admit(limits.half_open as usize);
        let (Some(seat), Some(half_open)) = (seat, half_open) else {
            dial::reset(stream);
            // Once a second: the log is not to be flooded either.
            if said.is_none_or(|said| said.elapsed() >= Duration::from_secs(1)) {
                said = Some(Instant::now());
                let mut decision = machine.decision(Protocol::Tcp);
                decision.rule = format!("limit connections {most}, half open {}", limits.half_open);
                decision.reason = "the machine holds too many connections".to_owned();
                machine.host.reporter.decided(decision);
            }
            continue;
        };
        let machine = machine.clone();
        tokio::spawn(async move {
            let _seat = seat;
            match kind {
                Kind::Dns => {
                    tokio::select! {
                        () = dns::tcp(machine.clone(), stream) => {}
                        () = machine.unlinked() => {}
                    }
                }
                kind => serve(machine, stream, half_open, kind).await,
            }
        });
    }
}

async fn serve(machine: Arc<Machine>, stream: TcpStream, half_open: crate::bridge::load::Seat, kind: Kind) {
    let Some(connection) = Connection::new(machine, stream, half_open) else { return };
    match kind {
        Kind::Tls => flow::tls::serve(connection).await,
        Kind::Http => flow::http::serve(connection).await,
        Kind::Other | Kind::Dns => flow::other::serve(connection).await,
    }
}
