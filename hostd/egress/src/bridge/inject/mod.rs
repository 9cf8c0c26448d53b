//! Hosts that a secret names: TLS is opened, requests get the secret, and
//! responses lose it again.
//!
//! The server is dialled before the guest's handshake is answered, so that the
//! guest is offered what the server speaks, and hears at once if the server's
//! certificate does not hold.

mod body;
mod budget;
mod exchange;
mod frames;
pub mod framing;
pub mod gate;
pub mod guard;
pub mod head;
mod messages;
mod response;
pub mod rewrite;
pub mod scrub;
mod server;
mod session;
mod spares;
pub mod websocket;
mod windows;

pub use budget::{Budget, Share};
pub use spares::Spares;

use crate::bridge::{flow::Connection, replay::Replay, sni::ClientHello};
use berth_types::egress::HostName;
use bytes::Bytes;
use session::Session;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

const HANDSHAKE: Duration = Duration::from_secs(15);

/// `tied`: the host itself resolved the name to this address for this machine.
pub async fn serve(connection: Connection, first: Vec<u8>, hello: ClientHello, name: HostName, tied: bool) {
    let Connection { machine, stream, to, half_open } = connection;
    let session = Arc::new(Session::open(machine.clone(), name.clone(), to, &hello, tied).await);
    let config = match machine.host.shared().authority.server(&name, session.http) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error, %name, "cannot make a certificate");
            return;
        }
    };
    let stream = Replay::new(Bytes::from(first), stream, machine.moved.clone());
    let accepted = timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await;
    let stream = match accepted {
        Ok(Ok(stream)) => stream,
        // A guest that pins its server's certificate, or does not trust ours.
        Ok(Err(error)) => return session.report_handshake(&error.to_string()),
        Err(_) => return session.report_handshake("the guest's handshake took too long"),
    };
    drop(half_open);
    server::serve(session, stream).await;
}
