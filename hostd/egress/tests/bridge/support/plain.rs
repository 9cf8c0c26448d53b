//! A server of plain HTTP/1.1 that keeps its connections.

use super::world::World;
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{Arc, Mutex},
};

/// The heads of the requests that arrived, over all connections.
#[derive(Clone, Debug, Default)]
pub struct Plain(Arc<Mutex<Vec<String>>>);

impl Plain {
    pub fn start(world: &World, address: &str) -> Self {
        let plain = Self::default();
        let listener = world.servers.listen(address.parse().unwrap());
        listener.set_nonblocking(false).unwrap();
        let serving = plain.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (plain, stream) = (serving.clone(), stream.unwrap());
                std::thread::spawn(move || plain.serve(stream));
            }
        });
        plain
    }

    pub fn seen(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Bodies have a length, or there is none.
    fn serve(&self, mut stream: TcpStream) {
        let mut bytes = Vec::new();
        loop {
            while let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                let whole = end + 4 + length.map_or(0, |length| length.parse::<usize>().unwrap());
                if bytes.len() < whole {
                    break;
                }
                bytes.drain(..whole);
                let closes = head.contains("Connection: close");
                self.0.lock().unwrap().push(head);
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n").unwrap();
                if closes {
                    return;
                }
            }
            let mut piece = [0; 4096];
            match stream.read(&mut piece) {
                Ok(count @ 1..) => bytes.extend_from_slice(&piece[..count]),
                _ => return,
            }
        }
    }
}
