//! A directory with `berth`, daemons beside it, and a configuration for them.

use super::fake;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A program that is still open for writing cannot be run, and whatever is forked
/// meanwhile holds it open: writing and forking take turns.
static TURN: Mutex<()> = Mutex::new(());

const LIMIT: Duration = Duration::from_secs(60);

pub struct Stage {
    directory: PathBuf,
    pub port: u16,
}

impl Stage {
    /// `None` without root.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if berth_sys::testing::lacks_root() {
            return None;
        }
        let _turn = turn();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = env::temp_dir().join(format!("berth-service-{}-{number}", std::process::id()));
        fs::create_dir_all(directory.join("images/debian")).unwrap();
        fs::create_dir_all(directory.join("run")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let stage = Self { directory, port };
        fs::copy(env!("CARGO_BIN_EXE_berth"), stage.path("berth")).unwrap();
        for name in ["hostd", "gateway"] {
            stage.pretend(name);
        }
        fs::write(stage.path("images/debian/image.json"), IMAGE).unwrap();
        fs::write(stage.path("berth.toml"), stage.config()).unwrap();
        Some(stage)
    }

    fn pretend(&self, name: &str) {
        let script = format!(
            "#!/bin/sh\nexport {}={} {}={}\nexec {} --ignored --exact fake::{name} --nocapture\n",
            fake::DIRECTORY,
            self.directory.display(),
            fake::PORT,
            self.port,
            env::current_exe().unwrap().display(),
        );
        let path = self.path(&format!("berth-{name}"));
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn config(&self) -> String {
        let directory = self.directory.display();
        berth_config::DEFAULT_TOML
            .replace("\"/var/lib/berth\"", &format!("\"{directory}/data\""))
            .replace("\"/run/berth\"", &format!("\"{directory}/run\""))
            .replace("\"/var/lib/berth/images\"", &format!("\"{directory}/images\""))
            .replace("[\"127.0.0.1:2222\", \"[::1]:2222\"]", &format!("[\"127.0.0.1:{}\"]", self.port))
            .replace("user = \"berth-gateway\"", "user = \"nobody\"")
    }

    /// The directory that the run directory is in.
    pub fn above_run(&self) -> PathBuf {
        self.directory.clone()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("berth"));
        command.arg("--config").arg(self.path("berth.toml")).args(arguments).stdin(Stdio::null());
        command
    }

    pub fn berth(&self, arguments: &[&str]) -> Output {
        let turn = turn();
        let child = self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(turn);
        child.wait_with_output().unwrap()
    }

    pub fn run(&self) -> Child {
        let _turn = turn();
        self.command(&["run"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    pub fn mark(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    pub fn marked(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    pub fn pid(&self, daemon: &str) -> Option<i32> {
        self.recorded(&format!("{daemon}.pid"))
    }

    pub fn supervisor(&self) -> Option<i32> {
        self.recorded("lock")
    }

    fn recorded(&self, file: &str) -> Option<i32> {
        let text = fs::read_to_string(self.path("run/supervisor").join(file)).ok()?;
        let pid = text.split_whitespace().next()?.parse().ok()?;
        self.lives(pid).then_some(pid)
    }

    /// One that has ended and only waits to be collected does not live.
    pub fn lives(&self, pid: i32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    pub fn kill(&self, pid: i32, signal: Signal) {
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    pub fn kill_supervisor(&self) {
        let pid = self.supervisor().unwrap();
        self.kill(pid, Signal::KILL);
        self.until("the supervisor is gone", || !self.lives(pid));
    }

    pub fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for pid in [self.supervisor(), self.pid("gateway"), self.pid("hostd")].into_iter().flatten() {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Enough to be an image; nothing starts from it.
const IMAGE: &str = r#"{
    "generation": 1, "name": "debian", "created": "2026-01-01T00:00:00Z", "suite": "bookworm",
    "kernel": "6.1", "recipe": "", "guest_init": ""
}"#;
