//! Standing still: a machine whose memory and disk agree, and which nobody asks anything.

use super::{actor::Actor, monitor::Hushed, power::lost};
use crate::{
    error::{Error, Result},
    guest::Control,
};
use berth_hypervisor::Vm;
use std::time::Duration;

/// How long a guest may take to freeze its processes.
const FREEZE: Duration = Duration::from_secs(20);
/// How often one that is frozen is looked at until it is quiet, at the most.
const LOOKS: u32 = 15;
const LOOK: Duration = Duration::from_millis(2);
/// Nanoseconds on a CPU from one look to the next of one that does nothing.
const QUIET: u64 = 500_000;

/// Why a machine is made to stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// It goes on in a moment, on the same connection.
    Capture,
    /// The same, and the copies are many: they have no core to rehearse on.
    Captures,
    Sleep,
}

/// A machine that stands still, and nobody asks it anything.
#[derive(Default)]
pub struct Still {
    monitor: Option<Hushed>,
    /// What it was told on, if it goes on in a moment.
    control: Option<Control>,
}

impl Actor {
    /// Freezes the user's processes, then stops the vCPUs. If the guest does
    /// not confirm, it goes on as before. What is returned is to be kept until it goes on
    /// or has ended.
    pub async fn quiesce(&mut self, what: For) -> Result<Still> {
        let Some(up) = &self.up else { return Err(Error::Guest("it has no process".into())) };
        let link = &up.powered.network.link;
        let rehearse = self.host.driver.capabilities().rehearse && what != For::Captures;
        let mut monitor = match &up.monitor {
            Some(monitor) => monitor.hush().await,
            None => None,
        };
        let there = monitor.as_mut().and_then(|line| line.take());
        let mut control = Some(Control::frozen(there, link, rehearse, FREEZE).await.map_err(lost)?);
        if what == For::Sleep
            && let Some(control) = control.take()
        {
            control.part().await;
            settled(up.powered.vm.as_ref()).await;
        }
        let still = Still { monitor, control };
        if let Err(error) = up.powered.vm.pause().await {
            self.go_on(still).await;
            return Err(error.into());
        }
        Ok(still)
    }

    /// Back from a quiesce that led nowhere, or has served its purpose.
    pub async fn go_on(&mut self, Still { monitor, control }: Still) {
        let Some(up) = &self.up else { return };
        let going = async {
            up.powered.vm.resume().await?;
            let mut control = match control {
                Some(control) => control,
                None => Control::when_up(&up.powered.network.link).await.map_err(lost)?,
            };
            control.go_on(&self.record, FREEZE).await.map_err(lost)?;
            Ok::<_, Error>(control)
        };
        match tokio::time::timeout(FREEZE, going).await {
            Ok(Ok(control)) => match (monitor, &up.monitor) {
                (Some(mut line), _) => *line = Some(control),
                (None, Some(monitor)) => monitor.give_control(control),
                (None, None) => {}
            },
            // The monitor will find it lost if it is.
            Ok(Err(error)) => {
                tracing::error!(machine = %self.record.id, error = error.chain(), "cannot go on after a capture");
            }
            Err(_) => {}
        }
    }
}

/// Waits until a frozen guest does nothing any more: what it was about to do, such as
/// to close the connection that it was frozen over, is the first that it would go on
/// with, and then in code that has to be translated anew.
pub async fn settled(vm: &dyn Vm) {
    let mut seen = vm.cpu_time();
    for _ in 0..LOOKS {
        tokio::time::sleep(LOOK).await;
        let before = std::mem::replace(&mut seen, vm.cpu_time());
        if seen.saturating_sub(before) < QUIET {
            return;
        }
    }
}
