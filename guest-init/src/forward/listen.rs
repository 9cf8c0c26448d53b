//! Listeners inside the guest, for `ssh -R` and agent forwarding. They last as
//! long as their stream.

use std::{
    fs,
    net::SocketAddr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use berth_guest_protocol::{Incoming, Listen, Opened};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::Mode,
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind, listen, socket_with,
    },
};

use super::{
    address::{bind_all, hosts},
    agent::AgentDirectory,
    resolve::resolve,
};
use crate::{
    error::{Context, Result},
    guest::Guest,
    server::{self, wire::Wire},
};

/// What the host has not claimed by then, it never will.
const CLAIM_WITHIN: Duration = Duration::from_secs(60);
/// Connections that may wait; the rest are closed, as sshd does with too many.
const UNCLAIMED: usize = 128;
const BACKLOG: i32 = 128;

pub fn run(guest: &Arc<Guest>, wire: &mut Wire, request: &Listen) -> Result<()> {
    // A name is resolved by a process of its own, which we could not start later.
    let addresses = match request {
        Listen::Tcp { host, .. } => hosts(host).map_or_else(|| resolve(guest, host), Ok)?,
        Listen::Unix { .. } | Listen::Agent => Vec::new(),
    };
    // From here on the kernel's own rules for the user apply: ports below 1024
    // and directories of others are refused by it.
    guest.become_user()?;
    let (mut listener, port, path) = match request {
        Listen::Tcp { host, port } => {
            let (sockets, port) = bind_all(host, &addresses, *port)?;
            (Listener { sockets, path: None, directory: None }, port, String::new())
        }
        Listen::Unix { path } => (Listener::unix(Path::new(path))?, 0, path.clone()),
        Listen::Agent => {
            let directory = AgentDirectory::create()?;
            let path = directory.socket();
            let mut listener = Listener::unix(&path)?;
            listener.directory = Some(directory);
            (listener, 0, path.display().to_string())
        }
    };
    wire.reply(Opened::Listening { port, path })?;
    let mut announced = Announced { guest, tickets: Vec::new() };
    listener.serve(wire, &mut announced)
}

#[derive(Debug)]
struct Listener {
    sockets: Vec<OwnedFd>,
    /// Removed at the end, as sshd does.
    path: Option<PathBuf>,
    directory: Option<AgentDirectory>,
}

/// Tickets of this listener that may not have been claimed.
struct Announced<'g> {
    guest: &'g Guest,
    tickets: Vec<(u64, Instant)>,
}

impl Listener {
    fn unix(path: &Path) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .during("make a socket for", path.display())?;
        let address = SocketAddrUnix::new(path.as_os_str().as_bytes()).during("listen on", path.display())?;
        // Before the bind, so that nobody else can connect in between; a umask
        // would be every thread's.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))
            .and_then(|()| bind(&socket, &address))
            .and_then(|()| listen(&socket, BACKLOG))
            .during("listen on", path.display())?;
        Ok(Self { sockets: vec![socket], path: Some(path.to_owned()), directory: None })
    }

    /// Until the host closes the stream.
    fn serve(&mut self, wire: &mut Wire, announced: &mut Announced<'_>) -> Result<()> {
        loop {
            let mut fds = vec![PollFd::new(wire, PollFlags::IN)];
            fds.extend(self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
            let timeout = announced.next_expiry().and_then(|after| after.try_into().ok());
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error).during("wait for", "connections"),
            }
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
            // The host has nothing to say here: whatever comes is the end.
            if ready.next().unwrap_or(true) {
                return Ok(());
            }
            announced.expire();
            for (socket, _) in self.sockets.iter().zip(ready).filter(|(_, ready)| *ready) {
                announced.accept(socket, wire)?;
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Somebody may have removed it before us.
            let _ = fs::remove_file(path);
        }
    }
}

impl Announced<'_> {
    fn accept(&mut self, listener: &OwnedFd, wire: &mut Wire) -> Result<()> {
        let (socket, peer) = match acceptfrom_with(listener, SocketFlags::CLOEXEC) {
            Ok((socket, peer)) => (socket, peer),
            // Whoever it was has gone again, or there is no room for it now.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::MFILE | Errno::NFILE) => {
                return Ok(());
            }
            Err(error) => return Err(error).during("accept", "a connection"),
        };
        if self.tickets.len() >= UNCLAIMED {
            return Ok(());
        }
        server::tune(&socket);
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let (host, port) = peer.map_or((String::new(), 0), |peer| (peer.ip().to_string(), peer.port()));
        let ticket = self.guest.tickets.issue(socket);
        self.tickets.push((ticket, Instant::now() + CLAIM_WITHIN));
        wire.send(&Incoming { ticket, host, port })
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let tickets = &self.guest.tickets;
        self.tickets.retain(|&(ticket, until)| {
            if until <= now {
                drop(tickets.claim(ticket));
            }
            tickets.is_waiting(ticket)
        });
    }

    fn next_expiry(&self) -> Option<Duration> {
        let (_, until) = self.tickets.first()?;
        // A little late rather than a little early.
        Some(until.saturating_duration_since(Instant::now()) + Duration::from_millis(10))
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        for (ticket, _) in &self.tickets {
            drop(self.guest.tickets.claim(*ticket));
        }
    }
}
