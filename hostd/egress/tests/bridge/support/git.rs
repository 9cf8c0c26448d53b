//! git servers: over HTTPS by git's own backend, over SSH by OpenSSH.

use super::world::World;
use bytes::Bytes;
use hyper::HeaderMap;
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A bare repository that can be pushed to.
pub fn repository(directory: &Path) -> PathBuf {
    let path = directory.join("repo.git");
    run(Command::new("git").args(["init", "-q", "--bare", "-b", "main"]).arg(&path));
    run(Command::new("git").arg("-C").arg(&path).args(["config", "http.receivepack", "true"]));
    path
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// One request to `git http-backend`: its headers and its body.
pub fn backend(
    root: &Path,
    method: &str,
    uri: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> (Vec<(String, String)>, Bytes) {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let header = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("REQUEST_METHOD", method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", header("content-type"))
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("REMOTE_USER", "me")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let sent = body.to_vec();
    let writer = std::thread::spawn(move || {
        let _ = input.write_all(&sent);
    });
    let output = child.wait_with_output().unwrap().stdout;
    writer.join().unwrap();
    let end = output.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let headers = head.lines().filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    (headers, Bytes::copy_from_slice(&output[end + 4..]))
}

/// `sshd` in the servers' namespace, ended with the test.
pub struct Sshd {
    child: Child,
    /// The private key that it lets in.
    pub key: String,
    pub known_hosts: String,
}

impl Sshd {
    pub fn start(world: &World, name: &str, address: &str) -> Self {
        let directory = world.directory.path();
        let file = |name: &str| directory.join(name).display().to_string();
        for key in ["host_key", "user_key"] {
            run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &file(key)]));
        }
        let config = format!(
            "Port 22\nListenAddress {address}\nHostKey {}\nPidFile none\nUsePAM no\nStrictModes no\n\
             AuthorizedKeysFile {}\nPermitRootLogin prohibit-password\nAcceptEnv GIT_PROTOCOL\n",
            file("host_key"),
            file("user_key.pub"),
        );
        std::fs::write(file("sshd_config"), config).unwrap();
        std::fs::create_dir_all("/run/sshd").unwrap();
        let child = world.servers.run(|| {
            let mut command = Command::new("/usr/sbin/sshd");
            command.args(["-D", "-e", "-f", &file("sshd_config")]).stderr(Stdio::null()).spawn().unwrap()
        });
        let start = Instant::now();
        while world.servers.run(|| std::net::TcpStream::connect((address, 22)).is_err()) {
            assert!(start.elapsed() < Duration::from_secs(60), "sshd does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        let public = std::fs::read_to_string(file("host_key.pub")).unwrap();
        Self {
            child,
            key: std::fs::read_to_string(file("user_key")).unwrap(),
            known_hosts: format!("{name} {}", public.trim()),
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
