//! `-A`: the client's ssh agent, as a socket inside the machine.

use super::listen::{self, Announce, Listening};
use crate::{ssh::peer::Peer, target::Place};
use berth_guest_protocol::Listen;
use berth_types::Refusal;
use std::sync::Arc;

/// The socket's path in the machine, for `SSH_AUTH_SOCK`. The socket goes with
/// the session that asked for it.
pub async fn listen(peer: &Arc<Peer>, place: Place) -> Result<(String, Listening), Refusal> {
    let admission = peer.admit()?;
    let bound = listen::bind(peer, &place, Listen::Agent).await?;
    let path = bound.path.clone();
    let listening = listen::serve(Arc::clone(peer), place, bound, Announce::Agent, admission);
    Ok((path, listening))
}
