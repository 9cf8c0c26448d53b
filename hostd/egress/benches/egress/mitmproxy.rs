//! mitmproxy doing the same rewriting, where it is installed.

use crate::{
    client::Way,
    support::{VALUE, World},
};
use std::{
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const ADDRESS: &str = "127.0.0.1:8081";

pub struct Mitmproxy {
    child: Child,
    authority: String,
}

impl Mitmproxy {
    pub fn start(world: &World) -> Option<Self> {
        let directory = world.directory.path().join("mitmproxy");
        let trust = world.directory.path().join("public.pem");
        std::fs::write(&trust, world.public.pem()).unwrap();
        let rewrite = format!("/~q/Authorization/Bearer {VALUE}");
        let spawned = world.host.run(|| {
            Command::new("mitmdump")
                .args([
                    "-q",
                    "--mode",
                    "reverse:https://198.51.100.10:443",
                    "--listen-host",
                    "127.0.0.1",
                    "-p",
                    "8081",
                ])
                .args(["--set", "keep_host_header=true", "--set", "connection_strategy=lazy"])
                .args(["--set", &format!("modify_headers={rewrite}")])
                .args(["--set", &format!("ssl_verify_upstream_trusted_ca={}", trust.display())])
                .args(["--set", &format!("confdir={}", directory.display())])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
        });
        let child = match spawned {
            Ok(child) => child,
            Err(error) => {
                eprintln!("mitmproxy is not compared with: mitmdump: {error}");
                return None;
            }
        };
        let mut proxy = Self { child, authority: String::new() };
        let (start, certificate) = (Instant::now(), directory.join("mitmproxy-ca-cert.pem"));
        while !certificate.exists() || world.host.run(|| TcpStream::connect(ADDRESS).is_err()) {
            if start.elapsed() > Duration::from_secs(30) {
                eprintln!("mitmproxy is not compared with: it does not come up");
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        proxy.authority = std::fs::read_to_string(certificate).unwrap();
        Some(proxy)
    }

    pub fn way(&self) -> Way {
        Way::Proxy { address: ADDRESS, authority: self.authority.clone() }
    }
}

impl Drop for Mitmproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
