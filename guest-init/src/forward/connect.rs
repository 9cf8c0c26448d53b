//! Connections made inside the guest, for `ssh -L`, `-D` and `-J`.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

use berth_guest_protocol::{Opened, Target};

use super::{relay, resolve::resolve};
use crate::{
    error::{Context, Error, Result},
    guest::Guest,
    server::{self, wire::Wire},
};

/// For each address of a name: long enough for a slow peer, short enough to
/// reach the next address.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(guest: &Arc<Guest>, wire: &mut Wire, target: &Target) -> Result<()> {
    let socket = match target {
        Target::Tcp { host, port } => tcp(guest, host, *port)?,
        Target::Unix { path } => {
            guest.become_user()?;
            UnixStream::connect(path).during("connect to", path)?.into()
        }
    };
    wire.reply(Opened::Connected)?;
    relay::run(wire, &socket)
}

fn tcp(guest: &Guest, host: &str, port: u16) -> Result<OwnedFd> {
    let name = format!("{host}:{port}");
    let addresses = resolve(guest, if host.is_empty() { "localhost" } else { host })?;
    guest.become_user()?;
    let mut last = Error::new("connect to", &name, io::ErrorKind::NotFound.into());
    for address in addresses {
        match TcpStream::connect_timeout(&SocketAddr::new(address, port), PATIENCE) {
            Ok(stream) => {
                let socket = stream.into();
                server::tune(&socket);
                return Ok(socket);
            }
            // The first address is the one a person means; a family that this
            // machine lacks explains nothing.
            Err(error) if lacks_family(&error) => {}
            Err(error) => last = Error::new("connect to", &name, error),
        }
    }
    Err(last)
}

fn lacks_family(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::ENETUNREACH))
}
