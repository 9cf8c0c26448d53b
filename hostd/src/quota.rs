//! What users' points in time may take of the pool.
//!
//! A point shares blocks with its machine and with other points, and how many of them
//! it shares changes whenever the machine writes. So what counts is what a point would take
//! if it shared nothing: its memory, and what its disk has allocated. That is never less
//! than what removing it could give back, and costs a `stat`, not a walk over extents.
//!
//! Points in which a machine sleeps do not count: they are that machine. So a machine can
//! always be put to sleep, and wakes, whatever its user's points take.

use crate::host::Host;
use berth_types::{ByteSize, Code, Generation, Refusal, UserId};
use std::{cmp::Reverse, sync::Arc};

/// Of a user's points that count, those that the user asked for and then the newest
/// first, with what each takes.
fn counted(host: &Host, user: &UserId) -> Vec<(Arc<Generation>, u64)> {
    let mut points = host.archive.owned_by(user);
    points.retain(|point| !host.archive.is_held(&point.id));
    points.sort_by_key(|point| (point.why.is_automatic(), Reverse(point.created)));
    points
        .into_iter()
        .map(|point| (takes(host, &point), point))
        .map(|(bytes, point)| (point, bytes))
        .collect()
}

fn takes(host: &Host, point: &Generation) -> u64 {
    let memory = if point.state_size > 0 { point.memory.bytes() } else { 0 };
    memory.saturating_add(host.storage.point_disk(&point.id).bytes())
}

/// What the user's points take.
pub fn points(host: &Host, user: &UserId) -> ByteSize {
    ByteSize(counted(host, user).iter().map(|(_, bytes)| bytes).sum())
}

/// Asked before anything that adds a point in time or a machine made from one.
pub fn admit_points(host: &Host, user: &UserId) -> Result<(), Refusal> {
    let (has, may) = (points(host, user), host.config.quota.points);
    if has < may {
        return Ok(());
    }
    let message = format!("your snapshots and earlier sleeps take {has}, and may take {may} together");
    let hint = "see them with 'snapshots NAME', remove some with 'snapshot rm NAME LABEL'";
    Err(Refusal::new(Code::Limit, message, hint))
}

/// Sleeping is never refused, so what it leaves behind goes when there is too much of it:
/// the oldest automatic points of all of the user's machines.
pub async fn prune(host: &Host, user: &UserId) {
    let mut sum = 0u64;
    for (point, bytes) in counted(host, user) {
        sum = sum.saturating_add(bytes);
        let beyond = sum > host.config.quota.points.bytes();
        if beyond && point.why.is_automatic() && host.archive.remove(&point.id).await.is_ok() {
            tracing::info!(point = %point.id, %user, "removed an earlier sleep: its user's points take too much");
            sum = sum.saturating_sub(bytes);
        }
    }
}
