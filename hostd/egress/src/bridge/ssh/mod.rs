//! SSH with a key that stays on the host: git's way to push.
//!
//! The guest's ssh is answered here and logs in without a key; the bridge logs
//! in to the server with the one it holds. Commands, shells and subsystems are
//! carried over; forwards and agents are not.

mod channel;
mod guest;
mod known;
mod queued;
mod server;

pub use known::KnownHosts;
pub use queued::WINDOW;

use crate::{
    bridge::{flow::Connection, replay::Replay, rules::Ready},
    control::Protocol,
};
use berth_types::egress::HostName;
use bytes::Bytes;
use russh::keys::{PrivateKey, ssh_key::private::Ed25519Keypair};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use zeroize::Zeroizing;

/// The key by which guests know the bridge. It comes from the authority's, so
/// it is the same after a restart and nobody has to keep another secret.
pub fn host_key(authority_key: &str) -> PrivateKey {
    let mut hash = Sha256::new();
    hash.update(b"berth: the bridge's SSH host key\0");
    hash.update(authority_key.as_bytes());
    let seed: Zeroizing<[u8; 32]> = Zeroizing::new(hash.finalize().into());
    PrivateKey::from(Ed25519Keypair::from_seed(&seed))
}

/// What guests have to have in their known_hosts for the hosts that a key is for.
pub fn public_host_key(authority_key: &str) -> Result<String, russh::keys::ssh_key::Error> {
    host_key(authority_key).public_key().to_openssh()
}

pub async fn serve(connection: Connection, name: HostName, secret: Arc<Ready>) {
    let Connection { machine, stream, to, half_open } = connection;
    let config = machine.host.shared().ssh.clone();
    let stream = Replay::new(Bytes::new(), stream, machine.moved.clone());
    let route = Arc::new(server::Route::new(machine, name, to, secret));
    let handler = guest::Handler::new(route.clone(), half_open);
    let serving = async {
        match russh::server::run_stream(config, stream, handler).await {
            Ok(session) => session.await,
            Err(error) => Err(error),
        }
    };
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::debug!(%error, "a guest's SSH connection broke");
        },
        () = route.no_longer_allowed() => route.refuse("closed: no longer allowed"),
    }
}

const PROTOCOL: Protocol = Protocol::Ssh;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_key_stays_the_same() {
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        assert_eq!(public_host_key(&key).unwrap(), public_host_key(&key).unwrap());
        assert!(public_host_key(&key).unwrap().starts_with("ssh-ed25519 "));
        assert_ne!(public_host_key(&key).unwrap(), public_host_key("another").unwrap());
    }
}
