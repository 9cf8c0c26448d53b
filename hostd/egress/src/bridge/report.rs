//! What hostd is told: decisions for the audit log, and signs of life.

use crate::{
    channel::Sender,
    control::{Decision, Event},
};
use tokio::sync::mpsc;

/// While hostd is slow to write them down, connections wait.
const WAITING: usize = 4096;
/// Sent together, when they come faster than one by one.
const AT_ONCE: usize = 64;

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
    while reports.recv_many(&mut events, AT_ONCE).await > 0 {
        let sent = sender.send_all(&events).await;
        events.clear();
        if let Err(error) = sent {
            tracing::error!(%error, "hostd does not listen");
            return;
        }
    }
}
