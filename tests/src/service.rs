//! A berth of one's own: both daemons, a configuration, a pool.

use crate::{
    Account, Endpoint, Scratch, Settings, binary,
    process::{Output, Run},
    scratch::MARK,
    sshd::{banner, free_port},
    wait::eventually,
};
use anyhow::{Context, Result, bail};
use berth_api::{Caller, Client, Reply, Request, Status};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::{self, File},
    net::Ipv4Addr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// A pool may have to be made, and hypervisors adopted.
const START: Duration = Duration::from_secs(90);
/// Machines are put to sleep, all at once.
const STOP: Duration = Duration::from_secs(120);

/// What systemd starts hostd by.
pub const UNIT: &str = include_str!("../../config/systemd/berth-hostd.service");

/// How a log in a failure begins.
pub const LOG: &str = "--- ";

pub struct Service {
    endpoint: Endpoint,
    directory: PathBuf,
    hostd: Mutex<Option<Child>>,
    gateway: Mutex<Option<Child>>,
}

impl Service {
    /// Makes the instance and starts both daemons.
    pub fn start(scratch: &Scratch, settings: &Settings) -> Result<Self> {
        let service = Self::prepare(scratch, settings)?;
        service.start_hostd()?;
        service.start_gateway()?;
        Ok(service)
    }

    /// Makes the instance only; for cases of `berth run` and `berth up`.
    pub fn prepare(scratch: &Scratch, settings: &Settings) -> Result<Self> {
        let directory = scratch.directory("s")?;
        let endpoint =
            Endpoint { address: (Ipv4Addr::LOCALHOST, free_port()?).into(), scratch: scratch.path().into() };
        let config = settings.render(&directory, endpoint.address, scratch.number())?;
        fs::write(directory.join("config.toml"), config)?;
        Ok(Self { endpoint, directory, hostd: Mutex::default(), gateway: Mutex::default() })
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn config(&self) -> PathBuf {
        self.directory.join("config.toml")
    }

    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    pub fn start_hostd(&self) -> Result<()> {
        self.spawn("berth-hostd", &self.hostd, &[], None)?;
        self.answers("berth-hostd", &self.hostd, || self.status().is_ok())
    }

    /// One that kills itself when it comes to this point.
    pub fn start_doomed_hostd(&self, point: &str) -> Result<()> {
        self.spawn("berth-hostd", &self.hostd, &[], Some(point))?;
        self.answers("berth-hostd", &self.hostd, || self.status().is_ok())
    }

    /// One with the capabilities that its systemd unit leaves it, and without a way to gain more.
    pub fn start_hostd_as_its_unit(&self) -> Result<()> {
        let bounds = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        let bounds = bounds.context("the unit bounds no capabilities")?.split_whitespace();
        let bounds: String =
            bounds.filter_map(|name| name.strip_prefix("CAP_")).map(|name| format!(",+{name}")).collect();
        let bounds = format!("--bounding-set=-all{}", bounds.to_lowercase());
        self.spawn("berth-hostd", &self.hostd, &["setpriv", &bounds, "--no-new-privs"], None)?;
        self.answers("berth-hostd", &self.hostd, || self.status().is_ok())
    }

    pub fn start_gateway(&self) -> Result<()> {
        self.spawn("berth-gateway", &self.gateway, &[], None)?;
        self.answers("berth-gateway", &self.gateway, || banner(self.endpoint.address).is_some())
    }

    /// `through`: a program that executes it, with its arguments.
    fn spawn(
        &self,
        name: &str,
        place: &Mutex<Option<Child>>,
        through: &[&str],
        fault: Option<&str>,
    ) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log_path(name))?;
        // Whatever umask the service is started under, its files are its own; and it keeps
        // neither an open file nor an ignored signal of the shell's.
        let child = Command::new("sh")
            .args(["-c", "umask 000; trap '' USR1; exec 9</dev/zero; exec \"$@\"", "sh"])
            .args(through)
            .arg(binary(name)?)
            .arg("--config")
            .arg(self.config())
            .env(MARK, &self.endpoint.scratch)
            .envs(fault.map(|point| ("BERTH_FAULT", point)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C in the terminal is for the runner, which stops them in order.
            .process_group(0)
            .spawn()?;
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        Ok(())
    }

    fn answers(&self, name: &str, place: &Mutex<Option<Child>>, answers: impl Fn() -> bool) -> Result<()> {
        eventually(&format!("{name} to answer"), START, || {
            if let Some(child) = place.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
                && let Some(status) = child.try_wait()?
            {
                bail!("{name} ended: {status}");
            }
            Ok(answers())
        })
        .with_context(|| self.logs())
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    /// The end of both logs, for whoever reads a failure.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for name in ["berth-hostd", "berth-gateway"] {
            let log = fs::read_to_string(self.log_path(name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines.get(lines.len().saturating_sub(40)..).unwrap_or_default();
            text.push_str(&format!("{LOG}{name}.log\n{}\n", tail.join("\n")));
        }
        text
    }

    pub fn hostd_pid(&self) -> Result<i32> {
        pid(&self.hostd).context("hostd does not run")
    }

    pub fn gateway_pid(&self) -> Result<i32> {
        pid(&self.gateway).context("the gateway does not run")
    }

    /// SIGKILL, as the kernel's out-of-memory killer would.
    pub fn kill_hostd(&self) -> Result<()> {
        end(&self.hostd, Signal::SIGKILL)
    }

    pub fn kill_gateway(&self) -> Result<()> {
        end(&self.gateway, Signal::SIGKILL)
    }

    /// SIGTERM: the daemon ends, machines run on.
    pub fn end_hostd(&self) -> Result<()> {
        end(&self.hostd, Signal::SIGTERM)
    }

    pub fn end_gateway(&self) -> Result<()> {
        end(&self.gateway, Signal::SIGTERM)
    }

    pub fn status(&self) -> Result<Status> {
        match self.ask(Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => bail!("not a status: {other:?}"),
        }
    }

    /// Asks hostd as its operator.
    pub fn ask(&self, request: Request) -> Result<Reply> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = Client::new(self.directory.join("run/hostd.sock"));
        let call = async { tokio::time::timeout(STOP, client.call(Caller::Operator, request)).await };
        Ok(runtime.block_on(call).context("hostd took too long")??.0)
    }

    /// Stops everything in order, machines included.
    pub fn stop(&self) -> Result<()> {
        if pid(&self.gateway).is_some() {
            self.end_gateway()?;
        }
        if pid(&self.hostd).is_some() {
            self.ask(Request::Shutdown)?;
            let what = "hostd to end after its shutdown";
            eventually(what, STOP, || {
                let mut place = self.hostd.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(place.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None))))
            })?;
        }
        Ok(())
    }

    /// The operator's command, with this instance's configuration.
    pub fn berth(&self, words: &[&str]) -> Result<Run> {
        Ok(Run::new(binary("berth")?)
            .args(words)
            .arg("--config")
            .arg(self.config())
            .env(MARK, &self.endpoint.scratch))
    }

    pub fn berth_ok(&self, words: &[&str]) -> Result<Output> {
        self.berth(words)?.ok()
    }

    /// Somebody nobody knows yet.
    pub fn account(&self, scratch: &Scratch) -> Result<Account> {
        Account::new(self.endpoint.clone(), scratch.directory("u")?)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // What this cannot end, the scratch directory's sweep does.
        if let Err(error) = self.stop() {
            eprintln!("cannot stop {}: {error:#}", self.directory.display());
        }
        for place in [&self.gateway, &self.hostd] {
            let _ = end(place, Signal::SIGKILL);
        }
    }
}

fn pid(place: &Mutex<Option<Child>>) -> Option<i32> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    let child = place.as_mut()?;
    matches!(child.try_wait(), Ok(None)).then(|| child.id().cast_signed())
}

fn end(place: &Mutex<Option<Child>>, signal: Signal) -> Result<()> {
    let Some(mut child) = place.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
    if child.try_wait()?.is_none() {
        kill(Pid::from_raw(child.id().cast_signed()), signal)?;
        child.wait()?;
    }
    Ok(())
}
