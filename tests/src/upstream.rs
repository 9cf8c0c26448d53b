//! The world outside, for machines to reach: servers in a network namespace of
//! their own, joined to the host by a veth pair on addresses for documentation.
//!
//! ```text
//!   machine ─▶ bridge (the host's namespace) ─▶ veth ─▶ upstream.py, sshd
//! ```
//!
//! The namespace is its processes': when they end, it and the pair are gone.

use crate::{
    Scratch,
    process::{Run, Running},
    scratch::MARK,
    wait::eventually,
};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};
use toml::{Table, Value};

const PROGRAM: &str = include_str!("../clients/upstream.py");
const PACKAGES: &str = include_str!("../clients/packages.py");
/// All of them are at the first address.
pub const NAMES: &[&str] = &[
    "api.upstream.example",
    "fork.upstream.example",
    "git.upstream.example",
    "grpc.upstream.example",
    "guarded.upstream.example",
    "headers.upstream.example",
    "killed.upstream.example",
    "mtls.upstream.example",
    "nowhere.upstream.example",
    "plain.upstream.example",
    "registry.upstream.example",
    "smuggle.upstream.example",
    "stripe.upstream.example",
];
/// At the same address; its certificate is for another name.
pub const WRONG: &str = "wrong.upstream.example";
/// At the second address: a server that no secret is for.
pub const ELSEWHERE: &str = "elsewhere.upstream.example";
/// Resolve to where nobody may go.
pub const REBOUND: &[(&str, &str)] = &[
    ("loop.upstream.example", "127.0.0.1"),
    ("link.upstream.example", "169.254.169.254"),
    ("machine.upstream.example", "10.77.0.2"),
];

pub struct Upstream {
    directory: PathBuf,
    number: u8,
    servers: Running,
    sshd: Running,
}

impl Upstream {
    pub fn start(scratch: &Scratch) -> Result<Self> {
        let directory = scratch.directory("world")?;
        certificates(&directory)?;
        fs::write(directory.join("expected.json"), "{}")?;
        fs::write(directory.join("upstream.py"), PROGRAM)?;
        let number = free_network()?;
        let program = directory.join("upstream.py");
        let servers = Run::new("unshare")
            .args(["--net", "--", "sh", "-c"])
            // It waits for its link before it listens.
            .arg("until ip link show up 2>/dev/null | grep -q veth; do sleep 0.02; done; exec /usr/bin/python3 \"$0\" \"$1\"")
            .arg(&program)
            .arg(&directory)
            .env(MARK, scratch.path())
            .limit(Duration::from_secs(3_600))
            .start()?;
        let sshd = {
            join(servers.pid(), number)?;
            let config = sshd_config(&directory)?;
            Run::new("nsenter")
                .args([
                    "--net",
                    "--target",
                    &servers.pid().to_string(),
                    "--",
                    "/usr/sbin/sshd",
                    "-D",
                    "-e",
                    "-f",
                ])
                .arg(config)
                .env(MARK, scratch.path())
                .limit(Duration::from_secs(3_600))
                .start()?
        };
        let upstream = Self { directory, number, servers, sshd };
        eventually("the servers outside to listen", Duration::from_secs(30), || {
            Ok(upstream.servers.said()?.contains("ready"))
        })
        .with_context(|| upstream.servers.complained().unwrap_or_default())?;
        Ok(upstream)
    }

    pub fn stop(&self) -> Result<()> {
        for process in [&self.sshd, &self.servers] {
            process.signal(Signal::SIGKILL)?;
        }
        // Killed is not yet gone.
        eventually("the servers outside to end", Duration::from_secs(30), || {
            Ok(self.sshd.has_ended() && self.servers.has_ended())
        })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(203, 0, 113, self.number * 8 + last)
    }

    /// What `egress.hosts` says of all of these names.
    pub fn hosts(&self) -> Value {
        let mut table = Table::new();
        let mut put = |name: &str, address: String| {
            table.insert(name.to_owned(), Value::from(vec![address]));
        };
        for name in NAMES.iter().chain([&WRONG]) {
            put(name, self.address(2).to_string());
        }
        put(ELSEWHERE, self.address(3).to_string());
        for (name, address) in REBOUND {
            put(name, (*address).to_owned());
        }
        put("host.upstream.example", self.address(1).to_string());
        Value::Table(table)
    }

    /// What requests to these paths have to carry from now on.
    pub fn expect(&self, expected: &serde_json::Value) -> Result<()> {
        let path = self.file("expected.json");
        let fresh = self.file("expected.new");
        fs::write(&fresh, expected.to_string())?;
        Ok(fs::rename(fresh, path)?)
    }

    /// Tiny packages below `/files`, which the registry gives only to whom it knows.
    pub fn packages(&self) -> Result<()> {
        let program = self.file("packages.py");
        fs::write(&program, PACKAGES)?;
        Run::new("/usr/bin/python3").arg(program).arg(&self.directory).ok().map(drop)
    }

    /// An empty repository; its path for ssh, its URL for HTTPS.
    pub fn repository(&self, name: &str) -> Result<(PathBuf, String)> {
        let path = self.directory.join("git").join(name);
        Run::new("git").args(["init", "-q", "--bare", "-b", "main"]).arg(&path).ok()?;
        Run::new("git").arg("-C").arg(&path).args(["config", "http.receivepack", "true"]).ok()?;
        Ok((path, format!("https://git.upstream.example/git/{name}")))
    }
}

/// One authority for servers and clients, and what it has certified.
fn certificates(directory: &Path) -> Result<()> {
    let make = |words: &[&str]| Run::new("openssl").args(words).directory(directory).ok().map(drop);
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let mut authority = vec!["req", "-x509", "-days", "30", "-subj", "/CN=upstream authority"];
    authority.extend(key);
    authority.extend(["-keyout", "ca.key", "-out", "ca.pem"]);
    make(&authority)?;
    let names: Vec<String> = NAMES.iter().chain([&ELSEWHERE]).map(|name| format!("DNS:{name}")).collect();
    for (file, subject, alternative) in [
        ("server", "/CN=upstream", format!("subjectAltName={}", names.join(","))),
        ("other", "/CN=other", "subjectAltName=DNS:other.example".to_owned()),
        ("client", "/CN=the machine", "extendedKeyUsage=clientAuth".to_owned()),
    ] {
        let (request, keyfile, certificate) =
            (format!("{file}.csr"), format!("{file}.key"), format!("{file}.crt"));
        let mut words = vec!["req", "-new", "-subj", subject];
        words.extend(key);
        words.extend(["-keyout", &keyfile, "-out", &request, "-addext", &alternative]);
        make(&words)?;
        make(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "30",
            "-copy_extensions",
            "copy",
            "-out",
            &certificate,
        ])?;
        let both = [fs::read(directory.join(&certificate))?, fs::read(directory.join(&keyfile))?].concat();
        fs::write(directory.join(format!("{file}.pem")), both)?;
    }
    Ok(())
}

/// The block of eight addresses that nobody on this host has.
fn free_network() -> Result<u8> {
    let taken = Run::new("ip").args(["-4", "-o", "address"]).ok()?.text();
    let start = u8::try_from(std::process::id() % 31)?;
    let number = (0..31)
        .map(|step| (start + step) % 31)
        .find(|number| !taken.contains(&format!(" 203.0.113.{}/", u32::from(*number) * 8 + 1)));
    number.context("every block of 203.0.113.0/24 is taken")
}

fn join(pid: i32, number: u8) -> Result<()> {
    let (ours, theirs) = (format!("bt{pid}"), format!("veth{}", pid % 10_000));
    let (pid, base) = (pid.to_string(), u32::from(number) * 8);
    let ip = |words: &str| Run::new("ip").args(words.split(' ')).ok().map(drop);
    let inside = |words: &str| {
        Run::new("nsenter")
            .args(["--net", "--target", &pid, "--", "ip"])
            .args(words.split(' '))
            .ok()
            .map(drop)
    };
    // `unshare` may not have made the namespace yet.
    eventually("a namespace of its own", Duration::from_secs(10), || {
        let own = fs::read_link("/proc/self/ns/net")?;
        Ok(fs::read_link(format!("/proc/{pid}/ns/net"))? != own)
    })?;
    ip(&format!("link add {ours} type veth peer name {theirs} netns {pid}"))?;
    ip(&format!("address add 203.0.113.{}/29 dev {ours}", base + 1))?;
    ip(&format!("link set {ours} up"))?;
    inside("link set lo up")?;
    for last in [2, 3] {
        inside(&format!("address add 203.0.113.{}/29 dev {theirs}", base + last))?;
    }
    inside(&format!("link set {theirs} up"))
}

/// Git over SSH, for one key, which can do nothing else.
fn sshd_config(directory: &Path) -> Result<PathBuf> {
    for name in ["ssh_host", "deploy"] {
        let key = directory.join(name);
        Run::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]).arg(key).ok()?;
    }
    let public = fs::read_to_string(directory.join("deploy.pub"))?;
    let authorized = directory.join("authorized_keys");
    fs::write(
        &authorized,
        format!("restrict,command=\"git-shell -c \\\"$SSH_ORIGINAL_COMMAND\\\"\" {public}"),
    )?;
    fs::set_permissions(&authorized, fs::Permissions::from_mode(0o600))?;
    ensure!(Path::new("/usr/sbin/sshd").exists(), "sshd is missing: run 'make setup-test'");
    fs::create_dir_all("/run/sshd")?;
    let config = directory.join("sshd_config");
    let place = directory.display();
    fs::write(
        &config,
        format!(
            "Port 22\nHostKey {place}/ssh_host\nAuthorizedKeysFile {place}/authorized_keys\nPidFile none\n\
             PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n\
             StrictModes no\nSetEnv PATH=/usr/local/bin:/usr/bin:/bin GIT_CONFIG_COUNT=1 \
             GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=*\n"
        ),
    )?;
    Ok(config)
}
