//! The real gateway and the real `ssh`, between a made-up hostd and a guest
//! that runs as a process on this host.

mod host;

pub use host::{Host, SLOW, WORD};

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Output, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// In seconds, for a client. It ends only what hangs.
pub const PATIENCE: &str = "300";
/// How long a test waits for a condition.
const LONG: Duration = Duration::from_secs(60);

/// A free port. The kernel gives out those from 32768 on, so no other process takes it
/// before it is used.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(97);
    loop {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let port = 20_000 + u16::try_from(number).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Waits until it is so.
#[track_caller]
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Everything of one test; gone with it.
pub struct Service {
    pub directory: PathBuf,
    pub port: u16,
    pub host: Host,
    gateway: Child,
    guest: Option<Child>,
    log: Log,
}

/// The gateway's log, read all the time so that it never breaks.
struct Log {
    text: Arc<Mutex<String>>,
    reading: Option<JoinHandle<()>>,
}

impl Log {
    fn follow(mut log: BufReader<ChildStderr>) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&text);
        let reading = std::thread::spawn(move || {
            let mut line = String::new();
            while log.read_line(&mut line).is_ok_and(|count| count > 0) {
                kept.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        Self { text, reading: Some(reading) }
    }
}

/// A key of somebody's.
pub struct Key(PathBuf);

impl Key {
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn public(&self) -> String {
        fs::read_to_string(self.0.with_extension("pub")).unwrap()
    }
}

impl Service {
    pub fn start() -> Self {
        Self::with(|config| config)
    }

    /// With a changed configuration.
    pub fn with(change: impl FnOnce(String) -> String) -> Self {
        let (guest, address) = start_guest();
        let mut service = Self::between(address, change);
        service.guest = Some(guest);
        service
    }

    /// With another guest than today's.
    pub fn with_guest(address: SocketAddr) -> Self {
        Self::between(address, |config| config)
    }

    fn between(guest: SocketAddr, change: impl FnOnce(String) -> String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = PathBuf::from(format!("/tmp/bg-{}-{count}", std::process::id()));
        fs::create_dir_all(directory.join("run")).unwrap();
        let host = Host::start(&directory.join("run/hostd.sock"), guest);
        let port = free_port();
        let config = change(
            berth_config::DEFAULT_TOML
                .replace("\"/var/lib/berth\"", &format!("{:?}", directory.join("data")))
                .replace("\"/run/berth\"", &format!("{:?}", directory.join("run")))
                .replace("[\"127.0.0.1:2222\", \"[::1]:2222\"]", &format!("[\"127.0.0.1:{port}\"]"))
                .replace("\"berth-gateway\"", "\"nobody\""),
        );
        let path = directory.join("config.toml");
        fs::write(&path, config).unwrap();
        let mut gateway = Command::new(env!("CARGO_BIN_EXE_berth-gateway"))
            .args(["--config".as_ref(), path.as_os_str()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(gateway.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening") {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the gateway did not start");
        }
        Self { directory, port, host, gateway, guest: None, log: Log::follow(log) }
    }

    /// Has the gateway's log this in it by now?
    pub fn has_logged(&self, text: &str) -> bool {
        self.log.text.lock().unwrap().contains(text)
    }

    pub fn gateway_pid(&self) -> u32 {
        self.gateway.id()
    }

    pub fn key(&self, name: &str) -> Key {
        self.key_of(name, "ed25519")
    }

    pub fn key_of(&self, name: &str, kind: &str) -> Key {
        let path = self.directory.join(name);
        let made = Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-C", name, "-t", kind, "-f"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(made.success());
        Key(path)
    }

    /// Options that `ssh`, `scp` and `sftp` share.
    pub fn options(&self, key: &Key) -> Vec<String> {
        let known = self.directory.join("known_hosts");
        [
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            "StrictHostKeyChecking=accept-new",
            "ConnectTimeout=60",
            &format!("Port={}", self.port),
            &format!("IdentityFile={}", key.path().display()),
            &format!("UserKnownHostsFile={}", known.display()),
        ]
        .into_iter()
        .flat_map(|option| ["-o".to_owned(), option.to_owned()])
        .chain(["-F".to_owned(), "none".to_owned()])
        .collect()
    }

    /// `timeout ssh …`: nothing hangs for ever.
    pub fn ssh(&self, key: &Key, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args([PATIENCE, "ssh"]).args(self.options(key)).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A connection for others to share, and the option that shares it.
    pub fn master(&self, key: &Key, arguments: &[&str]) -> (Client, String) {
        let path = self.directory.join("control");
        let option = format!("ControlPath={}", path.display());
        let client = Client(self.ssh(key, &[&["-M", "-o", &option], arguments].concat()).spawn().unwrap());
        wait_for("no connection to share", || path.exists());
        (client, option)
    }

    pub fn run(&self, key: &Key, arguments: &[&str]) -> Done {
        Done::from(self.ssh(key, arguments).output().unwrap())
    }

    pub fn run_with_input(&self, key: &Key, arguments: &[&str], input: &[u8]) -> Done {
        let mut child = self.ssh(key, arguments).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _ = stdin.write_all(input);
            });
            Done::from(child.wait_with_output().unwrap())
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for child in std::iter::once(&mut self.gateway).chain(&mut self.guest) {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let _ = self.log.reading.take().map(JoinHandle::join);
            eprintln!("--- gateway's log\n{}", self.log.text.lock().unwrap());
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A client that runs until it is dropped.
pub struct Client(pub Child);

impl Drop for Client {
    fn drop(&mut self) {
        // Asked, not killed: `timeout` passes it on.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// How a client ended.
#[derive(Debug)]
pub struct Done {
    pub status: i32,
    pub out: String,
    pub bytes: Vec<u8>,
    pub err: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            bytes: output.stdout,
        }
    }
}

impl Done {
    /// Without what ssh itself says of a new host key.
    pub fn said(&self) -> String {
        self.err
            .lines()
            .filter(|line| !line.starts_with("Warning: Permanently added"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

fn start_guest() -> (Child, SocketAddr) {
    let mut guest = Command::new(guest_init())
        .args(["serve", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(guest.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (guest, line.trim().parse().unwrap())
}

/// Built with the feature that lets it run on a host, in a place of its own so
/// that nobody takes it for the real one.
fn guest_init() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(path) = std::env::var_os("BERTH_HOSTED_GUEST_INIT") {
            return path.into();
        }
        let target =
            Path::new(env!("CARGO_BIN_EXE_berth-gateway")).ancestors().nth(2).unwrap().join("hosted");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "berth-guest-init", "--features", "hosted"])
            .arg("--target-dir")
            .arg(&target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success());
        target.join("debug/berth-guest-init")
    })
}

/// Where Python finds ssh-audit, which PyPI has; put beside what cargo builds, once.
pub fn ssh_audit() -> PathBuf {
    const RELEASE: &str = "ssh-audit==3.9.0";
    let target = Path::new(env!("CARGO_BIN_EXE_berth-gateway")).ancestors().nth(2).unwrap();
    let place = target.join("ssh-audit");
    if !place.join("ssh_audit").exists() {
        let part = target.join(format!("ssh-audit.{}", std::process::id()));
        let installed = Command::new("timeout")
            .args(["300", "python3", "-m", "pip", "-q", "--disable-pip-version-check", "install"])
            .args(["--no-deps", "--target"])
            .arg(&part)
            .arg(RELEASE)
            .status()
            .unwrap();
        assert!(installed.success(), "pip cannot install {RELEASE}");
        // Another run may have been first: its files are as good.
        if fs::rename(&part, &place).is_err() {
            fs::remove_dir_all(&part).unwrap();
        }
    }
    place
}

/// The gateway runs as nobody: it must reach what root made here.
pub fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}
