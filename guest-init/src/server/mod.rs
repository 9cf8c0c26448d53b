//! Accepts streams and sends each to what it opens, on a thread of its own.

pub mod streams;
pub mod wire;
mod workers;

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use berth_guest_protocol::{Kind, Open, Opened, Opening, Refused, RefusedKind};
use rustix::net::{AddressFamily, sockopt};

use crate::{
    control,
    error::{Error, Result},
    exec, forward,
    guest::Guest,
};
use wire::Wire;
use workers::{Thread, Workers};

/// A stream that names nothing is not kept.
const OPENING_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves until the listener breaks.
pub fn serve(guest: &Arc<Guest>, listener: OwnedFd) -> Result<()> {
    // Whatever it accepts has its options.
    tune(&listener);
    let guest = Arc::clone(guest);
    let (workers, broken) = Workers::new(listener, move |socket| stream(&guest, socket));
    workers.add()?;
    // Its threads tell what broke, or are gone without a word.
    drop(workers);
    let gone = |_| Error::new("accept", "a stream", io::ErrorKind::BrokenPipe.into());
    Err(broken.recv().unwrap_or_else(gone))
}

fn stream(guest: &Arc<Guest>, socket: OwnedFd) -> Thread {
    let socket = Arc::new(socket);
    let place = guest.streams.enter(&socket);
    let mut wire = Wire::new(socket);
    let (ended, thread) = match opening(&mut wire) {
        Err(refused) => (wire.refuse(refused), Thread::Reusable),
        Ok(_) if place.is_none() => {
            let message = "too many streams are open in this machine";
            (wire.refuse(refused(RefusedKind::Exhausted, message)), Thread::Reusable)
        }
        Ok(opening) => {
            // Forwards are made as the user, by a thread that stays one.
            let own = matches!(opening, Open::Control | Open::Exec(_));
            (run(guest, &mut wire, opening), if own { Thread::Reusable } else { Thread::Spent })
        }
    };
    // A stream's failure is its own: what can be told was told on it.
    drop(ended);
    thread
}

fn run(guest: &Arc<Guest>, wire: &mut Wire, opening: Open) -> Result<()> {
    let ended = match opening {
        Open::Control => wire.reply_soon(Opened::Control).and_then(|()| control::run(guest, wire)),
        Open::Exec(request) => exec::run(guest, wire, &request),
        Open::Connect(target) => forward::connect::run(guest, wire, &target),
        Open::Listen(listen) => forward::listen::run(guest, wire, &listen),
        Open::Accept { ticket } => forward::accept(guest, wire, ticket),
    };
    // A refusal before anything was replied reaches the host as one.
    ended.or_else(|error| wire.refuse(error.refusal()))
}

fn opening(wire: &mut Wire) -> std::result::Result<Open, Refused> {
    let malformed = |error: &Error| refused(RefusedKind::Malformed, &error.line());
    let (kind, payload) = wire.receive_within(OPENING_TIMEOUT).map_err(|error| malformed(&error))?;
    if kind != Kind::Open {
        return Err(refused(RefusedKind::Malformed, "a stream starts with Open"));
    }
    let Opening { speaks, open } =
        Opening::decode(&payload).map_err(|_| refused(RefusedKind::Malformed, "Open does not decode"))?;
    wire.greet(speaks).map_err(|error| malformed(&error))?;
    Ok(open)
}

fn refused(kind: RefusedKind, message: &str) -> Refused {
    Refused { kind, message: message.to_owned() }
}

/// Small frames must not wait for large ones, and a host that vanished without
/// a word (this machine is its fork, say) must be noticed in the end.
pub fn tune(socket: &OwnedFd) {
    if !matches!(sockopt::socket_domain(socket), Ok(AddressFamily::INET | AddressFamily::INET6)) {
        return;
    }
    // Each is an improvement, none a condition.
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(120));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(15));
    let _ = sockopt::set_tcp_keepcnt(socket, 4);
}
