//! What machines reach, with which secrets, and what they never get hold of.
//!
//! One service, one world outside and a few machines for all of these cases:
//! each keeps to secrets and hosts of its own.

pub mod attacks;
pub mod bridge;
pub mod clients;
pub mod nowhere;
pub mod policies;
pub mod rest;
pub mod secrets;

use crate::verbs::json;
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Output, Remote, Run, Scratch, Service, Settings, Upstream, eventually};
use serde_json::Value;
use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

pub struct World {
    service: Service,
    upstream: Upstream,
    account: Account,
    machines: Mutex<HashSet<String>>,
    expected: Mutex<Value>,
    /// Whoever ends the bridge does it alone.
    turn: RwLock<()>,
}

impl World {
    pub fn start(scratch: &Scratch) -> Result<Self> {
        let upstream = Upstream::start(scratch)?;
        let settings = Settings::default()
            .set("machine.memory", "256M")
            .set("egress.hosts", upstream.hosts())
            .set("egress.extra_roots", vec![upstream.file("ca.pem").display().to_string()]);
        let service = Service::start(scratch, &settings)?;
        let account = service.account(scratch)?;
        account.verb("whoami")?.ok()?;
        let (machines, expected) = (Mutex::default(), Mutex::new(Value::Object(Default::default())));
        Ok(Self { service, upstream, account, machines, expected, turn: RwLock::default() })
    }

    pub fn stop(&self) -> Result<()> {
        self.service.stop()?;
        self.upstream.stop()
    }

    pub fn logs(&self) -> String {
        self.service.logs()
    }

    fn together(&self) -> RwLockReadGuard<'_, ()> {
        self.turn.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.turn.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A machine of that name, made when it is first asked for.
    fn machine(&self, name: &str) -> Result<Remote> {
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        if machines.insert(name.to_owned()) {
            self.account.verb(&format!("new {name}"))?.ok()?;
        }
        Ok(self.account.at(name))
    }

    /// `secret set WORDS` with a value, as it is pasted: the words without quotes.
    fn set(&self, words: &str, value: impl AsRef<[u8]>) -> Result<Output> {
        self.account.client("ssh").arg("berth").args(["secret", "set"]).arg(words).input(value)?.ok()
    }

    /// From now on requests to `/NAME` have to carry this.
    fn expect(&self, name: &str, carried: &str) -> Result<()> {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        expected.as_object_mut().context("an object")?.insert(name.to_owned(), carried.into());
        self.upstream.expect(&expected)
    }

    /// What the bridge decided for a machine, newest last.
    fn decisions(&self, machine: &str) -> Result<Vec<Value>> {
        let log = json(&self.account, &format!("egress {machine} log"))?;
        Ok(log.as_array().cloned().unwrap_or_default())
    }

    /// Was this refused, and did the log say so?
    fn was_refused(&self, machine: &str, host: &str) -> Result<()> {
        self.logged(machine, &[("verdict", "refused")], host, None)
    }

    /// The log has, or will have soon, a line of this host or address, with these words.
    fn logged(&self, machine: &str, words: &[(&str, &str)], host: &str, port: Option<u16>) -> Result<()> {
        let what = format!("a line of {host} {port:?} with {words:?} in the log of {machine}");
        eventually(&what, Duration::from_secs(60), || {
            let decisions = self.decisions(machine)?;
            Ok(decisions.iter().any(|entry| {
                let is = |key: &str, value: &str| entry.get(key).and_then(Value::as_str) == Some(value);
                (is("host", host) || is("address", host))
                    && port.is_none_or(|port| entry.get("port").and_then(Value::as_u64) == Some(port.into()))
                    && words.iter().all(|(key, value)| is(key, value))
            }))
        })
    }
}

/// What a machine's curl prints, whatever comes of it.
fn curl(remote: &Remote, words: &str) -> Result<Output> {
    remote.run(&format!("curl -sS --max-time 60 {words}"))
}

fn welcomed(remote: &Remote, words: &str) -> Result<()> {
    let output = curl(remote, words)?;
    ensure!(output.line() == "welcome", "not welcome: {}", output.report());
    Ok(())
}

fn base64(text: &str) -> Result<String> {
    Ok(Run::new("base64").arg("-w0").input(text)?.ok()?.line())
}

/// Nobody else has it, so that a search for it finds only this.
fn fresh_value(prefix: &str) -> Result<String> {
    let mut bytes = [0u8; 12];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(bytes.iter().fold(format!("{prefix}-"), |text, byte| text + &format!("{byte:02x}")))
}
