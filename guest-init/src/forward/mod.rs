//! Connections into the guest and out of it: after the opening a stream is raw
//! bytes, half-closed as TCP is. All of it happens with the user's rights.

mod address;
mod agent;
pub mod connect;
pub mod listen;
mod relay;
mod resolve;
pub mod tickets;

use std::{io, sync::Arc};

use berth_guest_protocol::Opened;

use crate::{
    error::{Error, Result},
    guest::Guest,
    server::wire::Wire,
};

/// Claims a connection that a listener announced.
pub fn accept(guest: &Arc<Guest>, wire: &mut Wire, ticket: u64) -> Result<()> {
    let socket = guest
        .tickets
        .claim(ticket)
        .ok_or_else(|| Error::new("claim", format!("connection {ticket}"), io::ErrorKind::NotFound.into()))?;
    wire.reply(Opened::Connected)?;
    relay::run(wire, &socket)
}
