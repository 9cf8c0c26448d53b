//! A guest and a client that speaks to it. The guest is served on this host,
//! or is a machine that runs already, at the address in `BERTH_TEST_GUEST`.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a part of tests, each using its own part of it"
)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use berth_guest_protocol as protocol;
use berth_guest_protocol::{
    Exec, Exit, HEADER, Hello, Kind, Message, Open, Opening, Pty, Reply, Speaks, Version,
};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_berth-guest-init");

pub struct Guest {
    server: Option<Child>,
    pub address: SocketAddr,
}

impl Guest {
    pub fn start() -> Self {
        match std::env::var("BERTH_TEST_GUEST") {
            Ok(address) => Self::at(address.parse().unwrap()),
            Err(_) => Self::host(),
        }
    }

    pub fn at(address: SocketAddr) -> Self {
        Self { server: None, address }
    }

    pub fn is_machine(&self) -> bool {
        self.server.is_none()
    }

    fn host() -> Self {
        let mut server = Command::new(PROGRAM)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { server: Some(server), address: line.trim().parse().unwrap() }
    }

    pub fn raw(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    pub fn open(&self, open: Open) -> (Stream, Reply) {
        let mut stream = Stream(self.raw());
        stream.begin(Speaks::to(None), open);
        assert_eq!(stream.message::<Hello>().version, Version::OURS);
        let reply = stream.message();
        (stream, reply)
    }

    pub fn exec(&self, line: &str, pty: Option<Pty>) -> Stream {
        let exec = Exec { command: protocol::Command::Line(line.into()), env: Vec::new(), pty };
        let (stream, reply) = self.open(Open::Exec(exec));
        reply.unwrap();
        stream
    }

    pub fn run(&self, line: &str) -> Outcome {
        let mut stream = self.exec(line, None);
        stream.eof();
        stream.outcome()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }
}

pub fn pty(columns: u16, rows: u16) -> Pty {
    Pty { term: "xterm".into(), columns, rows, width: 0, height: 0, modes: Vec::new() }
}

pub struct Stream(pub TcpStream);

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    pub exit: Option<Exit>,
    /// The exit came before the end of output.
    pub exit_first: bool,
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

impl Stream {
    pub fn begin(&mut self, speaks: Speaks, open: Open) {
        self.0.write_all(&Opening { speaks, open }.encode().unwrap()).unwrap();
    }

    pub fn send<M: Message>(&mut self, message: &M) {
        self.0.write_all(&protocol::encode(Version::OURS, message).unwrap()).unwrap();
    }

    /// The next frame, which is one of these.
    pub fn message<M: Message>(&mut self) -> M {
        let (kind, payload) = self.receive().expect("a frame");
        assert_eq!(kind, M::KIND);
        protocol::decode(Version::OURS, &payload).unwrap()
    }

    pub fn data(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(protocol::MAX_DATA) {
            self.0.write_all(&protocol::header(Kind::Data, chunk.len())).unwrap();
            self.0.write_all(chunk).unwrap();
        }
    }

    pub fn eof(&mut self) {
        self.0.write_all(&protocol::header(Kind::Eof, 0)).unwrap();
    }

    /// None: the stream has ended.
    pub fn receive(&mut self) -> Option<(Kind, Vec<u8>)> {
        let mut head = [0; HEADER];
        self.0.read_exact(&mut head).ok()?;
        let header = protocol::parse_header(head).unwrap();
        let mut payload = vec![0; header.length];
        self.0.read_exact(&mut payload).ok()?;
        Some((header.kind, payload))
    }

    /// Reads output until it holds `text`.
    pub fn expect(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        loop {
            let (kind, payload) = self
                .receive()
                .unwrap_or_else(|| panic!("no {text:?} in {:?}", String::from_utf8_lossy(&seen)));
            assert_eq!(kind, Kind::Data);
            seen.extend(payload);
            let found = String::from_utf8_lossy(&seen).into_owned();
            if found.contains(text) {
                return found;
            }
        }
    }

    pub fn outcome(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut ended = false;
        while let Some((kind, payload)) = self.receive() {
            match kind {
                Kind::Data => outcome.out.extend(payload),
                Kind::Errors => outcome.err.extend(payload),
                Kind::Eof => ended = true,
                Kind::Exit => {
                    outcome.exit = Some(protocol::decode(Version::OURS, &payload).unwrap());
                    outcome.exit_first = !ended;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(ended, "no end of output");
        outcome
    }

    pub fn close_write(&self) {
        self.0.shutdown(Shutdown::Write).unwrap();
    }
}
