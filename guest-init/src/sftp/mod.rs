//! The SFTP server, version 3 with OpenSSH's extensions, on standard input and
//! output. It runs as the user, so the kernel decides what may be done.
//!
//! Clients keep many requests in flight: answers are gathered and written when
//! no whole request is left to handle.

mod attributes;
mod extensions;
mod files;
mod handles;
mod listing;
mod packet;
mod paths;

use std::io;

use rustix::{
    io::Errno,
    pipe::fcntl_setpipe_size,
    process::{Resource, Rlimit, getrlimit, setrlimit},
    stdio,
};

use crate::error::{Context, Result};
use handles::Handles;
use listing::People;
use packet::{MAX_PACKET, Malformed, Reader, Status, Writer, kind};

/// Read from a client at once.
const CHUNK: usize = 256 * 1024;
/// Written to a client at once.
const GATHER: usize = 256 * 1024;
/// Fewer wake-ups for large files; a smaller pipe works too.
const PIPE: usize = 512 * 1024;

pub fn run() -> Result<()> {
    for end in [stdio::stdin(), stdio::stdout()] {
        let _ = fcntl_setpipe_size(end, PIPE);
    }
    // A client may hold as many files open as the machine lets it.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let mut server = Server::new(limit.maximum.or(limit.current).unwrap_or(1024));
    let mut input = vec![0; 2 * CHUNK];
    let (mut start, mut end) = (0, 0);
    loop {
        let waiting = input.get(start..end).unwrap_or_default();
        if let Some(packet) = first_packet(waiting).during("read", "a request")? {
            start += 4 + packet.len();
            server.handle(packet).during("read", "a request")?;
            if server.out.len() >= GATHER {
                server.flush()?;
            }
            continue;
        }
        server.flush()?;
        input.copy_within(start..end, 0);
        (start, end) = (0, end - start);
        match rustix::io::read(stdio::stdin(), input.get_mut(end..).unwrap_or_default()) {
            Ok(0) => return Ok(()),
            Ok(count) => end += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).during("read", "standard input"),
        }
    }
}

/// The first request, when all of it is there. One that never could be is an end.
fn first_packet(bytes: &[u8]) -> io::Result<Option<&[u8]>> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if !(1..=MAX_PACKET).contains(&length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a request of {length} bytes")));
    }
    Ok(rest.get(..length))
}

struct Server {
    out: Writer,
    handles: Handles,
    people: People,
    greeted: bool,
    max_handles: u64,
}

/// What a handler comes to: an answer already written, or a status to write.
type Handled = std::result::Result<(), Status>;

impl Server {
    fn new(max_handles: u64) -> Self {
        Self {
            out: Writer::default(),
            handles: Handles::default(),
            people: People::default(),
            greeted: false,
            max_handles,
        }
    }

    fn handle(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut reader = Reader::new(packet);
        let malformed = |Malformed| io::Error::from(io::ErrorKind::InvalidData);
        let kind = reader.u8().map_err(malformed)?;
        let id = reader.u32().map_err(malformed)?;
        match (kind, self.greeted) {
            // What stands in place of an id is the client's version; ours is the answer.
            (kind::INIT, false) => {
                self.greeted = true;
                extensions::greet(&mut self.out);
                return Ok(());
            }
            (kind::INIT, true) | (_, false) => return Err(io::ErrorKind::InvalidData.into()),
            _ => {}
        }
        if let Err(status) = self.dispatch(kind, id, &mut reader) {
            self.out.status(id, &status);
        }
        Ok(())
    }

    fn dispatch(&mut self, kind: u8, id: u32, reader: &mut Reader<'_>) -> Handled {
        match kind {
            kind::OPEN => self.open(id, reader),
            kind::CLOSE => self.close(id, reader),
            kind::READ => self.read(id, reader),
            kind::WRITE => self.write(id, reader),
            kind::LSTAT => self.stat(id, reader, false),
            kind::STAT => self.stat(id, reader, true),
            kind::FSTAT => self.fstat(id, reader),
            kind::SETSTAT => self.setstat(id, reader, true),
            kind::FSETSTAT => self.fsetstat(id, reader),
            kind::OPENDIR => self.opendir(id, reader),
            kind::READDIR => self.readdir(id, reader),
            kind::REMOVE => self.remove(id, reader),
            kind::MKDIR => self.mkdir(id, reader),
            kind::RMDIR => self.rmdir(id, reader),
            kind::REALPATH => self.realpath(id, reader),
            kind::RENAME => self.rename(id, reader),
            kind::READLINK => self.readlink(id, reader),
            kind::SYMLINK => self.symlink(id, reader),
            kind::EXTENDED => self.extended(id, reader),
            _ => Err(Status::Unsupported),
        }
    }

    fn done(&mut self, id: u32) -> Handled {
        self.out.status(id, &Status::Ok);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let mut rest = self.out.as_slice();
        while !rest.is_empty() {
            match rustix::io::write(stdio::stdout(), rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).during("write", "standard output"),
            }
        }
        self.out.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        let mut server = Server::new(64);
        server.handle(&[kind::INIT, 0, 0, 0, 3]).unwrap();
        server.out.clear();
        server
    }

    #[test]
    fn lengths_are_checked_before_they_are_believed() {
        assert!(first_packet(&[0, 0, 0, 0, 1]).is_err());
        assert!(first_packet(&[255, 255, 255, 255]).is_err());
        assert_eq!(first_packet(&[0, 0, 0, 2, 1]).unwrap(), None);
        assert_eq!(first_packet(&[0, 0, 0, 2, 1, 2, 3]).unwrap(), Some(&[1, 2][..]));
    }

    #[test]
    fn nothing_is_served_before_the_greeting_and_no_second_one() {
        assert!(Server::new(64).handle(&[kind::STAT, 0, 0, 0, 1, 0, 0, 0, 1, b'/']).is_err());
        assert!(server().handle(&[kind::INIT, 0, 0, 0, 3]).is_err());
    }

    #[test]
    fn every_truncated_request_is_a_bad_message_and_not_the_end() {
        let mut server = server();
        for kind in 3..=255 {
            if kind == kind::INIT {
                continue;
            }
            server.handle(&[kind, 0, 0, 0, 9]).unwrap();
            server.handle(&[kind, 0, 0, 0, 9, 255, 255, 255, 255]).unwrap();
            let status = server.out.as_slice().get(4..13).unwrap();
            assert_eq!(status[..5], [kind::STATUS, 0, 0, 0, 9]);
            assert!([5, 8].contains(&status[8]), "{kind}: {status:?}");
            server.out.clear();
        }
    }
}
