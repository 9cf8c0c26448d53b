//! Faults: what breaks stays where it broke, says so, and loses nothing that
//! was acknowledged.

pub mod daemons;
pub mod guests;
pub mod limits;
pub mod moments;

use crate::verbs::json;
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Remote, Service, eventually};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use std::{fs, time::Duration};

pub const MINUTE: Duration = Duration::from_secs(60);

pub fn field(account: &Account, machine: &str, field: &str) -> Result<String> {
    let info = json(account, &format!("info {machine}"))?;
    Ok(info.pointer(field).and_then(Value::as_str).unwrap_or_default().to_owned())
}

pub fn state(account: &Account, machine: &str) -> Result<String> {
    field(account, machine, "/state")
}

/// Waits until a machine counts as failed; why, in its own words.
fn failed(account: &Account, machine: &str) -> Result<String> {
    eventually("the machine to be failed", 2 * MINUTE, || Ok(state(account, machine)? == "failed"))?;
    let reason = field(account, machine, "/failure/reason")?;
    ensure!(!reason.is_empty(), "no reason");
    Ok(reason)
}

/// The process that runs a machine: it works in the machine's directory.
pub fn hypervisor(service: &Service, account: &Account, machine: &str) -> Result<Pid> {
    let id = field(account, machine, "/id")?;
    let found = hypervisors(service)?.into_iter().find(|(_, directory)| directory.ends_with(&id));
    Ok(found.with_context(|| format!("no process works in {id}"))?.0)
}

/// All of a service's, with the directories that they work in.
pub fn hypervisors(service: &Service) -> Result<Vec<(Pid, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let pid = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let directory = fs::read_link(path.join("cwd"));
        if let (Some(pid), Ok(directory)) = (pid, directory)
            && directory.starts_with(service.data())
        {
            found.push((Pid::from_raw(pid), directory.display().to_string()));
        }
    }
    Ok(found)
}

pub fn signal(pid: Pid, signal: Signal) -> Result<()> {
    kill(pid, signal).context("cannot signal the hypervisor")
}

pub fn boot_id(remote: &Remote) -> Result<String> {
    remote.line("cat /proc/sys/kernel/random/boot_id")
}

/// Something that writes down the time again and again, in a machine.
fn start_counting(remote: &Remote) -> Result<()> {
    let beat = "while :; do date +%s.%N >> beats; sleep 0.2; done";
    remote.exec(&format!("nohup sh -c '{beat}' > /dev/null 2>&1 < /dev/null &"))?;
    eventually("the first beat", MINUTE, || Ok(remote.run("test -s beats")?.status == 0))
}

/// The longest time between two beats so far, in seconds.
fn longest_gap(remote: &Remote) -> Result<f64> {
    let script =
        "awk 'NR > 1 && $1 - last > most { most = $1 - last } { last = $1 } END { print most }' beats";
    remote.line(script)?.parse().context("no number")
}
