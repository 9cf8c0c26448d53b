//! Network namespaces of one test, gone when it ends.

use nix::sched::{CloneFlags, setns, unshare};
use std::{
    fs::File,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::fd::AsRawFd,
    process::Command,
};

#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    pub fn new() -> Self {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        let namespace = Self(made.join().unwrap());
        namespace.ip("link set lo up");
        namespace
    }

    /// The calling thread, and what it starts, live here from now on.
    pub fn enter(&self) {
        setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
    }

    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter();
                work()
            });
            inside.join().unwrap()
        })
    }

    pub fn ip(&self, arguments: &str) {
        let done = self.run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap());
        assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Where other programs find it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// As /proc names it.
    pub fn link(&self) -> std::path::PathBuf {
        self.run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap())
    }

    pub fn listen(&self, address: SocketAddr) -> TcpListener {
        let listener =
            self.run(|| TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}")));
        listener.set_nonblocking(true).unwrap();
        listener
    }

    pub fn datagrams(&self, address: SocketAddr) -> UdpSocket {
        let socket = self.run(|| UdpSocket::bind(address).unwrap());
        socket.set_nonblocking(true).unwrap();
        socket
    }
}
