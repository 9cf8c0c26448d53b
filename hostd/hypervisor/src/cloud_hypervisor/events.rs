//! What Cloud Hypervisor says of its own accord, through a named pipe.
//!
//! A pipe with a name outlives hostd: whoever adopts the process opens it again.
//! The process holds both ends of it, so that it never writes into the void,
//! and drops what it cannot write.

use crate::{Error, files, verdict::Cause, wire::Pace};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use serde::Deserialize;
use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};
use tokio::net::unix::pipe;

/// An event is some hundred bytes; a guest that resets its devices without end
/// makes many, and only the last ones matter.
const KEPT: usize = 16 * 1024;

#[derive(Debug, Deserialize)]
struct Event {
    source: String,
    event: String,
}

/// The pipe's place, beside the control socket.
pub(crate) fn path(socket: &Path) -> PathBuf {
    socket.with_extension("events")
}

/// Makes the pipe; the process is given what is returned.
pub(super) fn make(path: &Path) -> Result<OwnedFd, Error> {
    let make = || -> io::Result<OwnedFd> {
        files::remove(path)?;
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
    };
    make().map_err(|source| Error::Io { operation: "making the pipe of events", source })
}

/// Reads events until the process is gone.
#[derive(Debug)]
pub(super) struct Events {
    pipe: pipe::Receiver,
    unread: Vec<u8>,
    /// Of those, what was looked at.
    at: usize,
    pace: Pace,
}

impl Events {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let pipe = pipe::OpenOptions::new()
            .open_receiver(path)
            .map_err(|source| Error::Io { operation: "opening the pipe of events", source })?;
        Ok(Self { pipe, unread: Vec::new(), at: 0, pace: Pace::new() })
    }

    /// Forgets what was said before: a reboot that is over is none.
    pub(super) fn forget(&mut self) {
        // Past tokio, which does not try before it was told of something to read.
        let mut buffer = [0; 4096];
        while matches!(rustix::io::read(&self.pipe, &mut buffer[..]), Ok(count) if count > 0) {}
    }

    /// The next event that says why the machine ends. `None`: the pipe closed.
    pub(super) async fn cause(&mut self) -> Option<Cause> {
        loop {
            // Each look costs something, whatever is there.
            self.pace.spend().await;
            match self.next() {
                Next::Event(event) => {
                    if let Some(cause) = meaning(&event) {
                        return Some(cause);
                    }
                }
                Next::Noise => {}
                Next::Nothing => {
                    self.pipe.readable().await.ok()?;
                    if !self.fill() {
                        return None;
                    }
                }
            }
        }
    }

    /// False at the end of the pipe.
    fn fill(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.pipe.try_read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.unread.drain(..self.at);
                self.at = 0;
                self.unread.extend_from_slice(buffer.get(..count).unwrap_or_default());
                let beyond = self.unread.len().saturating_sub(KEPT);
                self.unread.drain(..beyond);
                true
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    /// Takes one whole event off what was read: JSON, with blank lines between.
    fn next(&mut self) -> Next {
        let unread = self.unread.get(self.at..).unwrap_or_default();
        let mut stream = serde_json::Deserializer::from_slice(unread).into_iter::<Event>();
        match stream.next() {
            Some(Ok(event)) => {
                self.at += stream.byte_offset();
                Next::Event(event)
            }
            // Not all of it is here yet.
            Some(Err(error)) if error.is_eof() => Next::Nothing,
            None => {
                self.at = self.unread.len();
                Next::Nothing
            }
            Some(Err(_)) => {
                // What does not parse was cut off: the next one begins with a line of its own.
                let next = unread.iter().skip(1).position(|byte| *byte == b'{').map(|at| at + 1);
                self.at += next.unwrap_or(unread.len());
                Next::Noise
            }
        }
    }
}

/// What is next in the pipe.
enum Next {
    Event(Event),
    /// Something else, which was passed over.
    Noise,
    /// Not yet a whole event.
    Nothing,
}

fn meaning(event: &Event) -> Option<Cause> {
    match (event.source.as_str(), event.event.as_str()) {
        ("guest", "panic") => Some(Cause::Panic),
        ("vm", "rebooting") => Some(Cause::Reset),
        ("vmm", "shutdown") => Some(Cause::Shutdown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(source: &str, event: &str) -> String {
        format!(
            "{{\n  \"timestamp\": {{\n    \"secs\": 0,\n    \"nanos\": 1\n  }},\n  \"source\": \"{source}\",\n  \"event\": \"{event}\",\n  \"properties\": null\n}}\n\n"
        )
    }

    async fn with_pipe(case: impl AsyncFnOnce(std::fs::File, Events)) {
        let path = std::env::temp_dir().join(format!("berth-events-{}", berth_types::MachineId::random()));
        let end = make(&path).unwrap();
        let events = Events::open(&path).unwrap();
        case(end.into(), events).await;
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn the_cause_is_found_among_others_however_it_is_cut() {
        use std::io::Write;
        with_pipe(async |mut end, mut events| {
            let all = [said("vmm", "starting"), said("vm", "booted"), said("vm", "rebooting")].concat();
            let (first, rest) = all.split_at(all.len() - 30);
            end.write_all(first.as_bytes()).unwrap();
            let waiting = tokio::time::timeout(std::time::Duration::from_millis(20), events.cause());
            assert!(waiting.await.is_err());
            end.write_all(rest.as_bytes()).unwrap();
            assert_eq!(events.cause().await, Some(Cause::Reset));
            end.write_all(said("vmm", "shutdown").as_bytes()).unwrap();
            assert_eq!(events.cause().await, Some(Cause::Shutdown));
        })
        .await;
    }

    #[tokio::test]
    async fn what_was_before_an_adoption_is_forgotten_and_noise_is_passed_over() {
        use std::io::Write;
        with_pipe(async |mut end, mut events| {
            end.write_all(said("vm", "rebooting").as_bytes()).unwrap();
            events.forget();
            end.write_all(b"\"cut off\": 1 }\n}\n").unwrap();
            end.write_all(said("guest", "panic").as_bytes()).unwrap();
            assert_eq!(events.cause().await, Some(Cause::Panic));
            drop(end);
            assert_eq!(events.cause().await, None);
        })
        .await;
    }

    /// What is said without end is kept and looked at within limits, and does not keep a
    /// word that makes sense from being heard.
    #[tokio::test(start_paused = true)]
    async fn a_flood_is_read_within_limits() {
        use std::io::Write;
        with_pipe(async |mut end, mut events| {
            for flood in ["{", "[", "x", "\"", r#"{"a":"#, r#"{"source":"vm","event":"booted"}"#] {
                let flood = flood.repeat(16 * KEPT / flood.len());
                let mut left = flood.as_bytes();
                while !left.is_empty() {
                    // The pipe takes what it has room for, and what it has none for is lost.
                    left = left.get(end.write(left).unwrap_or(1)..).unwrap_or_default();
                    let _ = tokio::time::timeout(Pace::SECOND, events.cause()).await;
                    assert!(events.unread.len() <= KEPT + 4096, "{} bytes are kept", events.unread.len());
                }
            }
            events.forget();
            end.write_all(format!("\n\n{}", said("vm", "rebooting")).as_bytes()).unwrap();
            assert_eq!(events.cause().await, Some(Cause::Reset));
        })
        .await;
    }
}
