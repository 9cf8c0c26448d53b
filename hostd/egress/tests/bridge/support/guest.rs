//! The guest: real programs in its namespace, with its resolver.

use super::namespace::Namespace;
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

const REDIRECT: &str = "
table ip guest {
  chain output {
    type nat hook output priority -100
    ip daddr 127.0.0.0/8 accept
    udp dport 53 redirect to :4053
    tcp dport 53 redirect to :4053
    tcp dport 443 redirect to :4443
    tcp dport 80 redirect to :4080
    meta l4proto tcp redirect to :4000
  }
  chain filter {
    type filter hook output priority 0
  }
}
";

#[derive(Debug)]
pub struct Guest {
    pub namespace: Namespace,
    resolver: PathBuf,
    authority: PathBuf,
}

#[derive(Debug)]
pub struct Ran {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Guest {
    pub fn new(directory: &Path, authority: &str) -> Self {
        let namespace = Namespace::new();
        namespace.ip("addr add 10.77.0.2/32 dev lo");
        namespace.ip("route add default dev lo src 10.77.0.2");
        let rules = directory.join("rules");
        std::fs::write(&rules, REDIRECT).unwrap();
        let loaded = namespace.run(|| Command::new("nft").arg("-f").arg(&rules).output().unwrap());
        assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
        let resolver = directory.join("resolv.conf");
        std::fs::write(&resolver, format!("nameserver {GATEWAY}\noptions timeout:20 attempts:1\n")).unwrap();
        let path = directory.join("authority.pem");
        std::fs::write(&path, authority).unwrap();
        Self { namespace, resolver, authority: path }
    }

    /// Runs a program as a machine would, its variables included.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Ran {
        let output = self.namespace.run(|| {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
                .unwrap();
            mount(Some(&self.resolver), "/etc/resolv.conf", None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .unwrap();
            let mut command = Command::new(program);
            for variable in ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"] {
                command.env(variable, &self.authority);
            }
            command.env("GIT_TERMINAL_PROMPT", "0").env("HOME", "/nonexistent");
            command.args(arguments).stdin(Stdio::null()).output().unwrap()
        });
        Ran {
            status: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// `curl` with the status code on a last line of its own.
    pub fn curl(&self, arguments: &[&str]) -> Ran {
        let mut all = vec!["-sS", "-m", "60", "-w", "\n%{http_code}"];
        all.extend(arguments);
        self.run("curl", &all)
    }

    /// One more rule, as `nft` has it.
    pub fn nft(&self, rule: &str) {
        let done = self.namespace.run(|| Command::new("nft").arg(rule).output().unwrap());
        assert!(done.status.success(), "nft {rule}: {}", String::from_utf8_lossy(&done.stderr));
    }

    pub fn connect(&self, to: &str) -> std::io::Result<TcpStream> {
        let to: SocketAddr = to.parse().unwrap();
        let stream = self.namespace.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(30)))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(stream)
    }
}

impl Ran {
    pub fn code(&self) -> &str {
        self.out.rsplit('\n').next().unwrap_or_default()
    }

    #[track_caller]
    pub fn is(&self, code: &str) -> &Self {
        assert_eq!(self.code(), code, "{self:?}");
        self
    }

    #[track_caller]
    pub fn has(&self, text: &str) -> &Self {
        assert!(self.out.contains(text), "{text:?} is not in {self:?}");
        self
    }

    #[track_caller]
    pub fn lacks(&self, text: &str) -> &Self {
        assert!(!self.out.contains(text) && !self.err.contains(text), "{text:?} is in {self:?}");
        self
    }
}
