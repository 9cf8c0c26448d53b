//! Every request of a plain HTTP connection, judged by its own Host.
//!
//! An allowlist that judged the first one only would let a guest ask for an allowed
//! name and then, on the same connection, for another one at its address. Bodies are
//! followed as strictly as where secrets go, so that no server sees a request here
//! that is not seen here. Nothing is changed on the way.

use super::http::{self, Head};
use crate::bridge::{
    inject::{
        framing::{Framing, Step},
        head::Fault,
    },
    machine::{Claim, Judged, Machine},
    splice::{self, Traffic},
};
use bytes::BytesMut;
use std::{
    io,
    net::SocketAddrV4,
    sync::{Arc, atomic::Ordering},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

const READ: usize = 16 * 1024;

/// Why a connection ended before both sides were done.
pub enum Stopped {
    Broken(io::Error),
    /// A request that is not for the connection's host, or for another one that is not allowed.
    Foreign(Box<Judged>),
    /// A request that servers could read in two ways.
    Misframed(Fault),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Both ways. `first` is what was read of the guest's already.
pub async fn both(
    machine: &Arc<Machine>,
    to: SocketAddrV4,
    first: &[u8],
    (guest, server): (&mut TcpStream, &mut TcpStream),
    traffic: &Traffic,
) -> Result<(), Stopped> {
    let (guest_read, guest_write) = guest.split();
    let (server_read, server_write) = server.split();
    let up = requests(machine, to, first, (guest_read, server_write), traffic);
    let down = async {
        let counters = [&traffic.down, &*machine.moved];
        Ok(splice::one_way(server_read, guest_write, counters).await?)
    };
    tokio::try_join!(up, down).map(drop)
}

async fn requests(
    machine: &Arc<Machine>,
    to: SocketAddrV4,
    first: &[u8],
    (mut guest, mut server): (ReadHalf<'_>, WriteHalf<'_>),
    traffic: &Traffic,
) -> Result<(), Stopped> {
    let mut framing = Framing::new(machine.host.shared().limits.header_bytes as usize);
    let mut bytes = BytesMut::from(first);
    loop {
        while !bytes.is_empty() {
            if framing.is_waiting() {
                // What follows a wish for another protocol is judged as requests: where it
                // was granted it does not look like any, and the connection ends.
                framing.answered(false);
            }
            let before = framing.requests();
            let count = match framing.follow(&bytes).map_err(Stopped::Misframed)? {
                Step::Pass(count) => count,
                Step::More | Step::Wait => break,
            };
            let piece = bytes.split_to(count);
            if framing.requests() > before {
                judge(machine, to, &piece).await?;
            }
            server.write_all(&piece).await?;
            for counter in [&traffic.up, &*machine.moved] {
                counter.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
        bytes.reserve(READ);
        if guest.read_buf(&mut bytes).await? == 0 {
            return Ok(server.shutdown().await?);
        }
    }
}

async fn judge(machine: &Arc<Machine>, to: SocketAddrV4, head: &[u8]) -> Result<(), Stopped> {
    let claim = match http::parse(head) {
        Head::Request { host: Some(host), .. } => Claim::Name(host),
        _ => Claim::Missing,
    };
    let judged = machine.judge(claim, to).await;
    if judged.verdict.allowed { Ok(()) } else { Err(Stopped::Foreign(Box::new(judged))) }
}
