//! Being asked to stop: once is a wish, twice is an order.

use berth_types::{Code, Refusal};
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug)]
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal was closed.
    hangup: Signal,
}

impl Stop {
    /// From now on the signals that end a process are answered by [`Stop::asked`].
    pub fn listen() -> Result<Self, Refusal> {
        let failed =
            |error| Refusal::new(Code::Failed, format!("cannot handle signals ({error})"), "try again");
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            hangup: signal(SignalKind::hangup()).map_err(failed)?,
        })
    }

    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
