//! Programs with a time limit, whose output is kept.
//!
//! Output goes to memory files rather than pipes: a grandchild that keeps its
//! standard error (ssh's ControlPersist does) then cannot hold up the reader,
//! and a program that says a lot is never blocked by us.

use anyhow::{Context, Result, bail};
use nix::{sys::signal, unistd::Pid};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
    process::{PidfdFlags, pidfd_open},
};
use std::{
    ffi::OsStr,
    fs::File,
    io::{Seek, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, process::CommandExt, process::ExitStatusExt},
    },
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// Machines are noisy and emulated guests are slow: this only ends what hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// A program to run. Everything it starts carries the scratch directory in its
/// environment, by which `crate::sweep` finds what outlived a case.
pub struct Run {
    command: Command,
    limit: Duration,
}

impl Run {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).process_group(0);
        Self { command, limit: LIMIT }
    }

    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    #[must_use]
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    #[must_use]
    pub fn without_env(mut self, key: &str) -> Self {
        self.command.env_remove(key);
        self
    }

    #[must_use]
    pub fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    pub fn input(mut self, bytes: impl AsRef<[u8]>) -> Result<Self> {
        let mut file = memory("input")?;
        file.write_all(bytes.as_ref())?;
        file.rewind()?;
        self.command.stdin(file);
        Ok(self)
    }

    /// Standard input stays open until [`Running::close_input`].
    #[must_use]
    pub fn open_input(mut self) -> Self {
        self.command.stdin(Stdio::piped());
        self
    }

    pub fn start(mut self) -> Result<Running> {
        let (stdout, stderr) = (memory("stdout")?, memory("stderr")?);
        self.command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        let what = describe(&self.command);
        let started = Instant::now();
        let mut child = self.command.spawn().with_context(|| format!("cannot start {what}"))?;
        let stdin = child.stdin.take();
        Ok(Running { child, stdin, stdout, stderr, what, started, limit: self.limit })
    }

    /// Runs it to its end, whatever its status.
    pub fn finish(self) -> Result<Output> {
        self.start()?.wait()
    }

    /// Runs it to its end, which must be a good one.
    pub fn ok(self) -> Result<Output> {
        self.finish()?.ok()
    }
}

/// Long arguments are scripts; their beginning is enough to know them by.
fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().chars().take(200).collect()));
    words.join(" ").chars().take(500).collect()
}

fn memory(name: &str) -> Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// A program under way. Dropping it ends its whole process group.
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: File,
    stderr: File,
    what: String,
    started: Instant,
    limit: Duration,
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let stdin = self.stdin.as_mut().context("standard input is closed")?;
        stdin.write_all(bytes)?;
        Ok(stdin.flush()?)
    }

    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// What it has said so far.
    pub fn said(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&contents(&self.stdout)?).into_owned())
    }

    pub fn complained(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&contents(&self.stderr)?).into_owned())
    }

    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Also when nobody has waited for it yet.
    pub fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with(['Z', 'X']))
    }

    pub fn signal(&self, signal: signal::Signal) -> Result<()> {
        signal::kill(Pid::from_raw(self.pid()), signal)
            .with_context(|| format!("cannot signal {}", self.what))
    }

    pub fn wait(mut self) -> Result<Output> {
        let left = self.limit.saturating_sub(self.started.elapsed());
        if !ends_within(&self.child, left)? {
            let (said, complained) = (self.said()?, self.complained()?);
            bail!(
                "{} did not end within {} s\nstdout: {}\nstderr: {}",
                self.what,
                self.limit.as_secs(),
                tail(&said),
                tail(&complained)
            );
        }
        let status = self.child.wait()?;
        Ok(Output {
            status: number(status),
            elapsed: self.started.elapsed(),
            stdout: contents(&self.stdout)?,
            stderr: contents(&self.stderr)?,
            what: self.what.clone(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let group = Pid::from_raw(self.pid());
            // It may end on its own meanwhile; then there is nothing to do.
            let _ = signal::killpg(group, signal::Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// As a shell tells it.
fn number(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

fn ends_within(child: &Child, limit: Duration) -> Result<bool> {
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).context("no process id")?;
    let end: OwnedFd = pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads without moving the position that the program writes at.
fn contents(file: &File) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len())?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(2000);
    let start = (start..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text.get(start..).unwrap_or_default()
}

#[derive(Clone, Debug)]
pub struct Output {
    /// As a shell tells it: 128 and more for a signal.
    pub status: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub elapsed: Duration,
    what: String,
}

impl Output {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Without the last line's end.
    pub fn line(&self) -> String {
        self.text().trim_end().to_owned()
    }

    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.stdout).with_context(|| format!("no JSON: {}", self.report()))
    }

    pub fn ok(self) -> Result<Self> {
        self.expect(0)
    }

    pub fn expect(self, status: i32) -> Result<Self> {
        if self.status != status {
            bail!("expected status {status}: {}", self.report());
        }
        Ok(self)
    }

    /// Everything about it, for whoever reads the failure.
    pub fn report(&self) -> String {
        let (stdout, stderr) = (self.text(), self.errors());
        format!(
            "{}\n  ended with {} after {:.1} s\n  stdout: {}\n  stderr: {}",
            self.what,
            self.status,
            self.elapsed.as_secs_f32(),
            tail(&stdout),
            tail(&stderr)
        )
    }
}
