//! Moving bytes between two sockets inside the kernel.
//!
//! A pipe is borrowed only while bytes are under way, so a connection that is
//! idle costs two descriptors and no buffer.

use rustix::{
    io::Errno,
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{
    io::Interest,
    net::{TcpStream, tcp},
};

/// What is moved at once, and what a pipe holds: four times the usual, for each
/// turn costs two system calls and often a wait. Many pipes of this size stay
/// below what the kernel lets one user have.
const CHUNK: usize = 256 * 1024;
const SPARE_PIPES: usize = 64;

static SPARES: Mutex<Vec<Pipe>> = Mutex::new(Vec::new());

struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Pipe {
    fn borrow() -> io::Result<Self> {
        if let Some(pipe) = SPARES.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(pipe);
        }
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller one does as well.
        let _ = fcntl_setpipe_size(&writer, CHUNK);
        Ok(Self { reader, writer })
    }

    /// Only an empty one: what is left in it would reach somebody else.
    fn give_back(self) {
        let mut spares = SPARES.lock().unwrap_or_else(PoisonError::into_inner);
        if spares.len() < SPARE_PIPES {
            spares.push(self);
        }
    }
}

/// What went by so far.
#[derive(Debug, Default)]
pub struct Traffic {
    pub up: AtomicU64,
    pub down: AtomicU64,
}

/// Both ways, until both ends are done or one breaks.
pub async fn both(
    guest: &mut TcpStream,
    server: &mut TcpStream,
    traffic: &Traffic,
    moved: &AtomicU64,
) -> io::Result<()> {
    let (guest_read, guest_write) = guest.split();
    let (server_read, server_write) = server.split();
    let up = one_way(guest_read, server_write, [&traffic.up, moved]);
    let down = one_way(server_read, guest_write, [&traffic.down, moved]);
    tokio::try_join!(up, down).map(drop)
}

pub async fn one_way(
    from: tcp::ReadHalf<'_>,
    to: tcp::WriteHalf<'_>,
    counters: [&AtomicU64; 2],
) -> io::Result<()> {
    let (from, to): (&TcpStream, &TcpStream) = (from.as_ref(), to.as_ref());
    loop {
        from.readable().await?;
        let pipe = Pipe::borrow()?;
        loop {
            let filled = from.try_io(Interest::READABLE, || shift(from.as_fd(), pipe.writer.as_fd(), CHUNK));
            let mut filled = match filled {
                Ok(0) => {
                    pipe.give_back();
                    return Ok(rustix::net::shutdown(to, rustix::net::Shutdown::Write)?);
                }
                Ok(filled) => filled,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            while filled > 0 {
                let drained = to
                    .async_io(Interest::WRITABLE, || shift(pipe.reader.as_fd(), to.as_fd(), filled))
                    .await?;
                if drained == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                filled -= drained;
                for counter in counters {
                    counter.fetch_add(drained as u64, Ordering::Relaxed);
                }
            }
        }
        pipe.give_back();
    }
}

fn shift(from: impl AsFd, to: impl AsFd, length: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        match splice(&from, None, &to, None, length, flags) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    #[tokio::test]
    async fn all_bytes_arrive_and_a_half_close_is_passed_on() {
        let ((mut client, mut guest), (mut server, mut upstream)) = (pair().await, pair().await);
        let moved = AtomicU64::new(0);
        let traffic = Traffic::default();
        let sent: Vec<u8> = (0..3_000_000u32).map(|number| number.to_le_bytes()[0]).collect();
        let talk = async {
            let (mut read, mut write) = client.split();
            let send = async {
                write.write_all(&sent).await.unwrap();
                write.shutdown().await.unwrap();
            };
            let mut echoed = Vec::new();
            let (_, _) = tokio::join!(send, async { read.read_to_end(&mut echoed).await.unwrap() });
            echoed
        };
        let echo = async {
            let mut got = Vec::new();
            upstream.read_to_end(&mut got).await.unwrap();
            upstream.write_all(&got).await.unwrap();
            upstream.shutdown().await.unwrap();
        };
        let (echoed, (), bridged) = tokio::join!(talk, echo, both(&mut guest, &mut server, &traffic, &moved));
        bridged.unwrap();
        assert!(echoed == sent);
        assert_eq!(traffic.up.load(Ordering::Relaxed), 3_000_000);
        assert_eq!(moved.load(Ordering::Relaxed), 6_000_000);
    }
}
