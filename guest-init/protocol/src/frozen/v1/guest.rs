//! A guest that speaks version 1 as guest-init of f8cd9a1 did: every frame is
//! checked as strictly, and what it does not know ends the stream. What it runs is
//! made up: it answers with what it was sent.
#![allow(clippy::unwrap_used, reason = "a part of tests")]

use super::{
    Answer, Command, Control, Exec, Exit, GENERATION, HEADER, Incoming, Kind, Listen, Open, Opened, Opening,
    Refused, RefusedKind, Reply, Vitals, decode, encode, header, parse_header,
};
use serde::Serialize;
use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

/// Serves until the test's process ends.
#[derive(Clone, Debug)]
pub struct Guest {
    pub address: SocketAddr,
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    /// Each is one connection.
    openings: Vec<Open>,
    /// Connections that were refused for what they said first.
    refused: usize,
    requests: Vec<Control>,
}

/// What it says of itself.
pub fn vitals() -> Vitals {
    Vitals { uptime_ms: 1, commands: 2, disk_total: 300, moved: 9, ..Vitals::default() }
}

/// What was said that this guest does not take: the stream ends.
struct Broken;

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl From<super::FrameError> for Broken {
    fn from(_: super::FrameError) -> Self {
        Self
    }
}

impl Guest {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let guest = Self { address: listener.local_addr().unwrap(), log: Arc::default() };
        let serving = guest.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let guest = serving.clone();
                thread::spawn(move || guest.stream(stream));
            }
        });
        guest
    }

    /// What was opened, in the order in which it was.
    pub fn openings(&self) -> Vec<Open> {
        self.log().openings.clone()
    }

    pub fn refused(&self) -> usize {
        self.log().refused
    }

    /// What was asked on control streams.
    pub fn requests(&self) -> Vec<Control> {
        self.log().requests.clone()
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stream(&self, mut stream: TcpStream) {
        let opened = match opening(&mut stream) {
            Ok(open) => {
                self.log().openings.push(open.clone());
                self.run(&mut stream, open)
            }
            Err(refused) => {
                self.log().refused += 1;
                refuse(&mut stream, refused)
            }
        };
        // So that closing does not reset what was sent.
        if opened.is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
            let _ = io::copy(&mut stream, &mut io::sink());
        }
    }

    fn run(&self, stream: &mut TcpStream, open: Open) -> Result<(), Broken> {
        match open {
            Open::Control => {
                reply(stream, Opened::Control)?;
                self.control(stream)
            }
            Open::Exec(exec) => {
                reply(stream, Opened::Exec { pid: 412 })?;
                run(stream, exec)
            }
            Open::Connect(_) | Open::Accept { ticket: 7 } => {
                reply(stream, Opened::Connected)?;
                let mut back = stream.try_clone()?;
                io::copy(stream, &mut back)?;
                Ok(())
            }
            Open::Accept { .. } => {
                let message = "no connection waits under that ticket".to_owned();
                refuse(stream, Refused { kind: RefusedKind::Unreachable, message })
            }
            Open::Listen(listen) => {
                let path = match listen {
                    Listen::Tcp { .. } => String::new(),
                    Listen::Unix { path } => path,
                    Listen::Agent => "/tmp/ssh-x/agent".to_owned(),
                };
                reply(stream, Opened::Listening { port: 4242, path })?;
                let incoming = Incoming { ticket: 7, host: "127.0.0.1".to_owned(), port: 40_000 };
                send(stream, Kind::Incoming, &incoming)?;
                // It lasts as long as the host keeps it.
                let _ = stream.read(&mut [0])?;
                Ok(())
            }
        }
    }

    fn control(&self, stream: &mut TcpStream) -> Result<(), Broken> {
        loop {
            let (kind, payload) = receive(stream)?;
            if kind != Kind::Control {
                return Err(Broken);
            }
            let request: Control = decode(&payload)?;
            self.log().requests.push(request.clone());
            match request {
                Control::Shutdown(_) => return Ok(()),
                Control::Vitals => send(stream, Kind::Answer, &Answer::Vitals(vitals()))?,
                _ => send(stream, Kind::Answer, &Answer::Done)?,
            }
        }
    }
}

/// As `server::opening` was.
fn opening(stream: &mut TcpStream) -> Result<Open, Refused> {
    let refused = |kind, message: &str| Refused { kind, message: message.to_owned() };
    let generation = |theirs: u16| {
        refused(RefusedKind::Generation, &format!("generation {theirs} asked, {GENERATION} spoken"))
    };
    let Ok((kind, payload)) = receive(stream) else {
        return Err(refused(RefusedKind::Malformed, "read a frame"));
    };
    if kind != Kind::Open {
        return Err(refused(RefusedKind::Malformed, "a stream starts with Open"));
    }
    match decode::<Opening>(&payload) {
        Ok(opening) if opening.generation == GENERATION => Ok(opening.open),
        Ok(opening) => Err(generation(opening.generation)),
        Err(_) => Err(match payload.first() {
            Some(&other) if u16::from(other) != GENERATION => generation(u16::from(other)),
            _ => refused(RefusedKind::Malformed, "Open does not decode"),
        }),
    }
}

/// `cat` gives back what it gets, SFTP its version; all else says what it was on both
/// outputs and ends with 3.
fn run(stream: &mut TcpStream, exec: Exec) -> Result<(), Broken> {
    let cat = matches!(&exec.command, Command::Shell) || exec.command == Command::Line(b"cat".to_vec());
    let sftp = exec.command == Command::Sftp;
    if let Command::Line(line) = &exec.command
        && !cat
    {
        data(stream, Kind::Data, &[b"ran ", &line[..]].concat())?;
        data(stream, Kind::Errors, format!("with {} variables", exec.env.len()).as_bytes())?;
        stream.write_all(&header(Kind::Eof, 0))?;
        return send(stream, Kind::Exit, &Exit::Status(3));
    }
    loop {
        match receive(stream)? {
            (Kind::Data, bytes) if cat => data(stream, Kind::Data, &bytes)?,
            (Kind::Data, _) if sftp => data(stream, Kind::Data, &[0, 0, 0, 5, 2, 0, 0, 0, 3])?,
            (Kind::Data, _) => {}
            (Kind::Event, payload) => {
                let event: super::Event = decode(&payload)?;
                data(stream, Kind::Data, format!("{event:?}").as_bytes())?;
            }
            (Kind::Eof, _) => break,
            _ => return Err(Broken),
        }
    }
    stream.write_all(&header(Kind::Eof, 0))?;
    send(stream, Kind::Exit, &Exit::Status(0))
}

fn reply(stream: &mut TcpStream, opened: Opened) -> Result<(), Broken> {
    send(stream, Kind::Reply, &Reply::Ok(opened))
}

fn refuse(stream: &mut TcpStream, refused: Refused) -> Result<(), Broken> {
    send(stream, Kind::Reply, &Reply::Err(refused))
}

fn send<T: Serialize>(stream: &mut TcpStream, kind: Kind, message: &T) -> Result<(), Broken> {
    Ok(stream.write_all(&encode(kind, message)?)?)
}

fn data(stream: &mut TcpStream, kind: Kind, bytes: &[u8]) -> Result<(), Broken> {
    stream.write_all(&header(kind, bytes.len()))?;
    Ok(stream.write_all(bytes)?)
}

fn receive(stream: &mut TcpStream) -> Result<(Kind, Vec<u8>), Broken> {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head)?;
    let head = parse_header(head)?;
    let mut payload = vec![0; head.length];
    stream.read_exact(&mut payload)?;
    Ok((head.kind, payload))
}
