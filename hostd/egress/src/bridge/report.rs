//! What hostd is told: decisions for the audit log, and signs of life.
//!
//! A machine that makes thousands of requests a second makes as many decisions. To
//! send each by itself would wake hostd for each, which costs more than the rest of
//! the decision, so those that come close together are sent together.

use crate::{
    channel::Sender,
    control::{Decision, Event},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};

/// While hostd is slow to write them down they wait here; more are counted only.
const WAITING: usize = 4096;
/// Sent together, when they come faster than one by one.
const AT_ONCE: usize = 256;
/// Between two sendings. The first after a pause goes at once.
const APART: Duration = Duration::from_millis(5);

#[derive(Clone, Debug)]
pub struct Reporter {
    events: mpsc::Sender<Event>,
    untold: Arc<AtomicU64>,
}

/// What is to be written to hostd.
pub struct Reports {
    events: mpsc::Receiver<Event>,
    untold: Arc<AtomicU64>,
}

pub fn channel() -> (Reporter, Reports) {
    let (sender, events) = mpsc::channel(WAITING);
    let untold = Arc::<AtomicU64>::default();
    (Reporter { events: sender, untold: untold.clone() }, Reports { events, untold })
}

impl Reporter {
    pub async fn say(&self, event: Event) {
        // Without hostd the process is about to end.
        let _ = self.events.send(event).await;
    }

    /// From where nothing can wait. What finds no room is counted, so that a guest
    /// that is refused a million times takes no memory for it.
    pub fn decided(&self, decision: Decision) {
        if let Err(mpsc::error::TrySendError::Full(_)) =
            self.events.try_send(Event::Decision(Box::new(decision)))
        {
            self.untold.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub async fn write(mut sender: Sender, reports: Reports) {
    let Reports { events: mut reports, untold } = reports;
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
        match untold.swap(0, Ordering::Relaxed) {
            0 => {}
            decisions => events.push(Event::Untold { decisions }),
        }
        let sent = sender.send_all(&events).await;
        events.clear();
        if let Err(error) = sent {
            tracing::error!(%error, "hostd does not listen");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        channel::halves,
        control::{Outcome, Protocol},
    };
    use berth_types::{MachineId, UserId};
    use tokio::net::UnixStream;

    fn decision() -> Decision {
        Decision {
            machine: MachineId::random(),
            owner: UserId::random(),
            time: jiff::Timestamp::now(),
            protocol: Protocol::Tcp,
            host: None,
            claimed: None,
            address: None,
            port: None,
            verdict: Outcome::Refused,
            rule: "closed".to_owned(),
            reason: String::new(),
            up: 0,
            down: 0,
        }
    }

    #[tokio::test]
    async fn what_finds_no_room_is_counted_and_not_kept() {
        let (reporter, reports) = channel();
        // Nobody reads yet, as when hostd is slow.
        for _ in 0..100_000 {
            reporter.decided(decision());
        }
        assert_eq!(reports.events.len(), WAITING);
        let (near, far) = UnixStream::pair().unwrap();
        let ((sender, _near), (_far, mut receiver)) = (halves(near), halves(far));
        tokio::spawn(write(sender, reports));
        let (mut told, mut untold) = (0, 0);
        while told + untold < 100_000 {
            match receiver.receive::<Event>().await.unwrap().0 {
                Event::Decision(_) => told += 1,
                Event::Untold { decisions } => untold += decisions,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((told, untold), (WAITING as u64, 100_000 - WAITING as u64));
        // There is room again.
        reporter.decided(decision());
        assert!(matches!(receiver.receive::<Event>().await.unwrap().0, Event::Decision(_)));
    }
}
