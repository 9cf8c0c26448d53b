//! What hostd is told: decisions for the audit log, and signs of life.
//!
//! A machine that makes thousands of requests a second makes as many decisions. To
//! send each by itself would wake hostd for each, which costs more than the rest of
//! the decision, so those that come close together are sent together.

use crate::{
    channel::Sender,
    control::{Decision, Event},
};
use std::time::Duration;
use tokio::{sync::mpsc, time::Instant};

/// While hostd is slow to write them down, connections wait.
const WAITING: usize = 4096;
/// Sent together, when they come faster than one by one.
const AT_ONCE: usize = 256;
/// Between two sendings. The first after a pause goes at once.
const APART: Duration = Duration::from_millis(5);

#[derive(Clone, Debug)]
pub struct Reporter(mpsc::Sender<Event>);

pub fn channel() -> (Reporter, mpsc::Receiver<Event>) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Reporter(sender), receiver)
}

impl Reporter {
    pub async fn say(&self, event: Event) {
        // Without hostd the process is about to end.
        let _ = self.0.send(event).await;
    }

    /// From where nothing can wait; does not lose the decision either.
    pub fn decided(&self, decision: Decision) {
        let event = Event::Decision(Box::new(decision));
        if let Err(mpsc::error::TrySendError::Full(event)) = self.0.try_send(event) {
            let reporter = self.clone();
            tokio::spawn(async move { reporter.say(event).await });
        }
    }
}

pub async fn write(mut sender: Sender, mut reports: mpsc::Receiver<Event>) {
    let mut events = Vec::new();
    let mut next = Instant::now();
    while reports.recv_many(&mut events, AT_ONCE).await > 0 {
        let now = Instant::now();
        if now < next && events.len() < AT_ONCE {
            tokio::time::sleep_until(next).await;
            while events.len() < AT_ONCE
                && let Ok(event) = reports.try_recv()
            {
                events.push(event);
            }
        }
        next = Instant::now() + APART;
        let sent = sender.send_all(&events).await;
        events.clear();
        if let Err(error) = sent {
            tracing::error!(%error, "hostd does not listen");
            return;
        }
    }
}
