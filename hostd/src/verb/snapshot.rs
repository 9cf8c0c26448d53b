//! Points in time by name.

use super::{Progress, new};
use crate::{host::Host, quota};
use berth_api::{PointView, Reply};
use berth_types::{Code, Generation, Label, MachineName, Point, Refusal, Span, UserId, Why};
use jiff::Timestamp;
use std::sync::Arc;

/// Snapshots of one machine; enough for anyone who also removes some.
const MOST: usize = 100;

pub async fn snapshot(
    host: &Host,
    user: &UserId,
    name: &MachineName,
    label: Option<Label>,
    progress: &Progress,
) -> Result<Reply, Refusal> {
    let handle = host.fleet.find(user, name)?;
    let label = match label {
        Some(label) => label,
        None => generated()?,
    };
    let taken = host.archive.of(handle.id()).iter().filter(|one| matches!(one.why, Why::Snapshot(_))).count();
    if taken >= MOST {
        let message = format!("'{name}' has {MOST} snapshots, the most there may be");
        return Err(Refusal::new(
            Code::Limit,
            message,
            format!("remove one with 'snapshot rm {name} LABEL'"),
        ));
    }
    quota::admit_points(host, user)?;
    progress.say(format!("capturing {name}"));
    let generation = handle.capture(Why::Snapshot(label.clone()), 1).await?;
    // What is acknowledged outlives a power failure.
    let durable = host.archive.sync(&generation.id).await;
    host.archive.release(&generation.id).await;
    durable?;
    Ok(Reply::Point(view(host, &generation, label.to_string()).await?))
}

/// A label that sorts by time: `2026-11-16-021530`.
fn generated() -> Result<Label, Refusal> {
    let now = Timestamp::now().strftime("%Y-%m-%d-%H%M%S").to_string();
    now.parse().map_err(|error| Refusal::new(Code::Failed, format!("{error}"), "give a label"))
}

pub async fn list(host: &Host, user: &UserId, name: &MachineName) -> Result<Reply, Refusal> {
    let handle = host.fleet.find(user, name)?;
    let mut place = 0;
    let mut points = Vec::new();
    for generation in host.archive.of(handle.id()) {
        let point = match &generation.why {
            Why::Snapshot(label) => label.to_string(),
            Why::Sleep | Why::Restore => {
                place += 1;
                format!("@{place}")
            }
            Why::Fork | Why::Template { .. } => continue,
        };
        points.push(view(host, &generation, point).await?);
    }
    Ok(Reply::Points(points))
}

pub async fn remove(host: &Host, user: &UserId, name: &MachineName, label: Label) -> Result<Reply, Refusal> {
    let handle = host.fleet.find(user, name)?;
    let generation = host.archive.point(handle.id(), &Point::Label(label))?;
    host.archive.remove(&generation.id).await?;
    Ok(Reply::Done)
}

pub async fn new_from(
    host: &Arc<Host>,
    user: &UserId,
    new: MachineName,
    name: &MachineName,
    point: Point,
    ttl: Option<Span>,
    progress: &Progress,
) -> Result<Reply, Refusal> {
    let source = host.fleet.find(user, name)?;
    let heritage = new::Heritage::of(&source.record(), false);
    // Held until the new machine has a hold of its own.
    let generation = host.archive.hold_point(source.id(), &point)?;
    progress.say(format!("starting {new}"));
    let made = async {
        host.archive.verify_whole(&generation.id).await?;
        new::from_generation(host, user, new, &generation, heritage, ttl).await
    };
    let made = made.await;
    host.archive.release(&generation.id).await;
    let handle = made?;
    handle.touch();
    new::up_or_gone(&handle).await?;
    host.storage.sync_directories().await?;
    Ok(Reply::Machine(Box::new(handle.view(host))))
}

async fn view(host: &Host, generation: &Generation, point: String) -> Result<PointView, Refusal> {
    let why = match generation.why {
        Why::Snapshot(_) => "snapshot",
        Why::Sleep => "sleep",
        Why::Restore => "restore",
        Why::Fork => "fork",
        Why::Template { .. } => "template",
    };
    let occupied = host.archive.occupied(&generation.id).await?;
    Ok(PointView {
        point,
        machine: generation.name.clone(),
        why: why.to_owned(),
        created: generation.created,
        memory: generation.memory,
        disk: generation.disk,
        occupied: occupied.all,
        own: occupied.own,
        has_memory: generation.state_size > 0,
    })
}
