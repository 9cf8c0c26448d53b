//! Do the store, the pool, processes and namespaces tell the same?

use crate::{
    faults::{MINUTE, hypervisors},
    verbs::json,
};
use anyhow::{Context as _, Result, bail, ensure};
use berth_tests::{Account, Service, until};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Those of the configuration that tests have.
const SPARES: usize = 2;

/// For a service with one account. What is being made when one looks, a
/// template or a spare network, is waited for.
pub fn sound(service: &Service, account: &Account) -> Result<()> {
    let mut last = None;
    let settled = until("everything to agree", MINUTE, || {
        last = look(service, account)?.err();
        Ok(last.is_none().then_some(()))
    });
    if settled.is_err() {
        bail!("{}", last.unwrap_or_default());
    }
    Ok(())
}

/// Inside: what does not agree now.
fn look(service: &Service, account: &Account) -> Result<Result<(), String>> {
    let machines = states(account)?;
    let awake: BTreeSet<&String> = machines
        .iter()
        .filter(|(_, state)| ["running", "paused"].contains(&state.as_str()))
        .map(|one| one.0)
        .collect();
    let settled = ["running", "paused", "asleep", "stopped", "failed"];
    if machines.values().any(|state| !settled.contains(&state.as_str())) {
        return Ok(Err(format!("on the way: {machines:?}")));
    }
    let pool = service.data().join("pool");
    let processes: Vec<String> = hypervisors(service)?
        .into_iter()
        .filter_map(|(_, path)| Some(path.rsplit('/').next()?.to_owned()))
        .collect();
    if processes.len() != awake.len() || !processes.iter().all(|id| awake.contains(id)) {
        return Ok(Err(format!("processes {processes:?} of {machines:?}")));
    }
    let directories = names(&pool.join("machines"))?;
    if !directories.iter().eq(machines.keys()) {
        return Ok(Err(format!("directories {directories:?} of {machines:?}")));
    }
    // A crash would pair old device state with RAM that has gone on.
    if let Some(id) = awake.iter().find(|id| pool.join("machines").join(id).join("state").exists()) {
        return Ok(Err(format!("{id} runs beside device state of its past")));
    }
    let generations = names(&pool.join("generations"))?;
    if generations.iter().any(|name| name.starts_with('.')) {
        return Ok(Err(format!("half-made generations: {generations:?}")));
    }
    for name in &generations {
        let files = names(&pool.join("generations").join(name)).unwrap_or_default();
        if files.contains("ram.half") {
            return Ok(Err(format!("half a clone in {name}: {files:?}")));
        }
    }
    // A machine that sleeps keeps its network while somebody is connected.
    let networks = names(&service.directory().join("run/net"))?.len();
    let most = machines.values().filter(|state| *state == "asleep").count() + awake.len() + SPARES;
    if networks < awake.len() || networks > most {
        return Ok(Err(format!("{networks} namespaces for {machines:?}")));
    }
    Ok(Ok(()))
}

/// Of every machine, by its id.
fn states(account: &Account) -> Result<BTreeMap<String, String>> {
    let list = json(account, "ls")?;
    let mut states = BTreeMap::new();
    for one in list.as_array().into_iter().flatten() {
        let text = |key: &str| one.get(key).and_then(Value::as_str).map(str::to_owned).context("no list");
        ensure!(states.insert(text("id")?, text("state")?).is_none(), "twice: {list}");
    }
    Ok(states)
}

fn names(directory: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(directory).with_context(|| format!("no {}", directory.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}
