//! Live copies: one capture, any number of children.

use super::{Progress, new};
use crate::{host::Host, machine::Handle, quota};
use berth_api::Reply;
use berth_types::{Code, DEFAULT_MACHINE, MachineId, MachineName, Refusal, UserId, Why};
use std::sync::Arc;
use tokio::task::JoinSet;

/// More than anyone tries at once, few enough to take back.
const MOST: u32 = 100;

pub async fn fork(
    host: &Arc<Host>,
    user: &UserId,
    source: Option<MachineName>,
    new: Option<MachineName>,
    count: Option<u32>,
    no_secrets: bool,
    progress: &Progress,
) -> Result<Reply, Refusal> {
    // 1. Everything that can be refused is, before anybody is paused.
    let source = match source {
        Some(name) => host.fleet.find(user, &name)?,
        None => default_machine(host, user)?,
    };
    let names = names(host, user, &source, new, count)?;
    let record = source.record();
    let more = u32::try_from(names.len()).unwrap_or(u32::MAX);
    host.ledger.check_machines(user, more, record.disk)?;
    quota::admit_points(host, user)?;
    // 2. One capture, held until every child has its own hold on it.
    progress.say(format!("capturing {}", record.name));
    let generation = source.capture(Why::Fork, names.len()).await?;
    let heritage = new::Heritage::of(&record, no_secrets);
    let mut children = Vec::new();
    let mut refused = None;
    for name in names {
        match new::from_generation(host, user, name, &generation, heritage.clone(), None).await {
            Ok(child) => children.push(child),
            Err(refusal) => {
                refused = Some(refusal);
                break;
            }
        }
    }
    host.archive.release(&generation.id).await;
    // 3. All of them up, or none left.
    if refused.is_none() {
        progress.say(format!("starting {} of {}", children.len(), record.name));
        refused = start(&children).await.err();
    }
    if refused.is_none() {
        let durable = tokio::try_join!(host.storage.sync_directories(), host.store.sync());
        refused = durable.err().map(Refusal::from);
    }
    if let Some(refusal) = refused {
        for child in children {
            new::take_back(&child).await;
        }
        return Err(refusal);
    }
    Ok(Reply::Machines(children.iter().map(|child| child.view(host)).collect()))
}

async fn start(children: &[Handle]) -> Result<(), Refusal> {
    let mut starting = JoinSet::new();
    for child in children {
        child.touch();
        let child = child.clone();
        starting.spawn(async move { child.start().await });
    }
    let mut result = Ok(());
    while let Some(started) = starting.join_next().await {
        if let Ok(Err(refusal)) = started {
            result = Err(refusal);
        }
    }
    result
}

fn default_machine(host: &Host, user: &UserId) -> Result<Handle, Refusal> {
    let name = DEFAULT_MACHINE.parse();
    let name =
        name.map_err(|error| Refusal::new(Code::Failed, format!("{error}"), "name the machine to fork"))?;
    host.fleet.find(user, &name)
}

/// What the children will be called, none of it taken yet.
fn names(
    host: &Host,
    user: &UserId,
    source: &Handle,
    new: Option<MachineName>,
    count: Option<u32>,
) -> Result<Vec<MachineName>, Refusal> {
    let parsed = |text: String| {
        let name = text.parse::<MachineName>().map_err(|error| {
            Refusal::new(Code::Usage, error.to_string(), format!("'{text}' would be a child's name"))
        });
        name?.for_new_machine()
    };
    let names = match (new, count) {
        (_, Some(count)) if count == 0 || count > MOST => {
            let message = format!("a fork makes 1 to {MOST} machines, not {count}");
            return Err(Refusal::new(Code::Usage, message, "try -n 10"));
        }
        (Some(new), None) => vec![new.for_new_machine()?],
        (Some(new), Some(count)) => {
            (1..=count).map(|n| parsed(format!("{new}-{n}"))).collect::<Result<_, _>>()?
        }
        (None, count) => {
            let base: String = source.record().name.as_str().chars().take(33).collect();
            // A machine of an earlier version may have a name that new ones do not get.
            let parts: Vec<&str> = base.split('-').filter(|part| !part.is_empty()).collect();
            let base = parts.join("-");
            let one = |_| {
                let tail: String = MachineId::random().as_str().chars().take(4).collect();
                parsed(format!("{base}-{tail}"))
            };
            (0..count.unwrap_or(1)).map(one).collect::<Result<_, _>>()?
        }
    };
    match names.iter().find(|name| host.fleet.is_taken(user, name)) {
        Some(name) => {
            let message = format!("you already have a machine '{name}'");
            Err(Refusal::new(Code::Conflict, message, format!("choose another name, or 'rm {name}' first")))
        }
        None => Ok(names),
    }
}
