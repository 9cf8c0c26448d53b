//! When a machine rests.

use crate::{host::Host, idle, machine::Policy};
use berth_api::{Reply, WhyView};
use berth_types::{MachineName, Refusal, Span, UserId};
use jiff::{SignedDuration, Timestamp};

pub async fn keepalive(
    host: &Host,
    user: &UserId,
    name: &MachineName,
    span: Option<Span>,
) -> Result<Reply, Refusal> {
    let handle = host.fleet.find(user, name)?;
    let until = span
        .and_then(|span| Timestamp::now().checked_add(SignedDuration::try_from(span.duration()).ok()?).ok());
    handle.set(Policy::Keepalive(until)).await?;
    if until.is_some() {
        handle.start().await?;
    }
    why(host, user, name).await
}

pub async fn why(host: &Host, user: &UserId, name: &MachineName) -> Result<Reply, Refusal> {
    let handle = host.fleet.find(user, name)?;
    // Asked anew: a command that has just ended is no reason any more.
    let activity = handle.fresh_activity().await;
    let record = handle.record();
    let policy = record.idle.unwrap_or(host.config.idle.policy());
    Ok(Reply::Why(WhyView {
        name: name.clone(),
        state: record.state,
        reason: idle::explain(&record, activity.as_ref(), policy, Timestamp::now()),
        activity,
        policy,
    }))
}
