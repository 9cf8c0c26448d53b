//! The pulse: is the guest still there?

use crate::{
    guest::{Control, GuestError},
    host::Host,
    net::Link,
};
use berth_types::MachineId;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};

const EVERY: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 5_000 });

/// Asks now and then. Returns only when the guest counts as lost, with the reason.
///
/// A guest on a busy host may be slow, and its connection may break without
/// harm, so only silence for the whole of the configured time counts. Garbage
/// counts at once: whatever speaks there is not guest-init any more.
pub async fn watch(host: Arc<Host>, id: MachineId, link: Link, mut control: Control) -> String {
    let patience = host.config.machine.silence_timeout.duration();
    loop {
        tokio::time::sleep(EVERY).await;
        host.storage.trim_console(&id);
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match control.ping(left).await {
                Ok(()) => break,
                Err(GuestError::Silent) => return silent(patience),
                Err(error @ (GuestError::Protocol(_) | GuestError::Refused(_))) => return error.to_string(),
                Err(GuestError::Io(_)) => match timeout_at(deadline, Control::when_up(&link)).await {
                    Ok(Ok(fresh)) => control = fresh,
                    Ok(Err(error)) => return error.to_string(),
                    Err(_) => return silent(patience),
                },
            }
        }
    }
}

fn silent(patience: Duration) -> String {
    format!("the guest has not answered for {} s", patience.as_secs())
}
