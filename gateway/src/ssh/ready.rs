//! The question of `berth up` and `berth run`: does a login come as far as hostd?
//!
//! It is an ordinary connection with a key of the moment, so that it goes the whole way of
//! a user's: address, host key, login, channel. It makes no user, may do nothing but ask,
//! and counts as no failed login. Only the host itself may ask so.

use super::{
    channel::{Gone, Outlet},
    peer::{Origin, Peer},
    session,
};
use crate::{command, ui::Screen};
use berth_api::{READY_LOGIN, Reply, Request};
use std::net::SocketAddr;

/// Is this login that question?
pub fn asks(peer: &Peer, user: &str) -> bool {
    let from_network = matches!(peer.origin, Origin::Network);
    user == READY_LOGIN && from_network && is_own(peer.remote, peer.local)
}

/// The host reaches its own addresses from loopback or from the address itself.
fn is_own(remote: SocketAddr, local: SocketAddr) -> bool {
    let (remote, local) = (remote.ip().to_canonical(), local.ip().to_canonical());
    remote.is_loopback() || remote == local
}

/// Passes hostd's word on, or says why there is none.
pub async fn answer(peer: &Peer, outlet: &Outlet, screen: &Screen<'_>) -> Result<(), Gone> {
    let refusal = match peer.ask(Request::Ready).await {
        Ok(Reply::Ready(word)) => {
            screen.result(&format!("{word}\n")).await?;
            outlet.exit_status(0).await?;
            return outlet.eof().await;
        }
        Ok(_) => command::unexpected(),
        Err(refusal) => refusal,
    };
    session::refuse(outlet, screen, &refusal).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_host_itself_asks() {
        for (remote, local, own) in [
            ("127.0.0.1:50000", "127.0.0.1:22", true),
            ("[::1]:50000", "[::1]:22", true),
            ("192.0.2.1:50000", "192.0.2.1:22", true),
            ("[::ffff:192.0.2.1]:50000", "192.0.2.1:22", true),
            ("192.0.2.7:50000", "192.0.2.1:22", false),
            ("[2001:db8::7]:50000", "[2001:db8::1]:22", false),
        ] {
            assert_eq!(is_own(remote.parse().unwrap(), local.parse().unwrap()), own, "{remote} {local}");
        }
    }
}
