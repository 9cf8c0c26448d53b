//! Bringing a machine up, in steps that each know their undo.

use crate::{
    error::{Error, Result},
    guest::{Control, GuestError},
    host::Host,
    ledger::MemoryLease,
    net::Network,
};
use berth_hypervisor::{Launch, Origin, Vm};
use berth_types::{Code, Machine, Refusal};
use std::{sync::Arc, time::Duration};

/// How long a guest that answers may take to repair itself.
const REPAIR: Duration = Duration::from_secs(30);

/// A hypervisor that runs, and what it holds.
pub struct Powered {
    pub vm: Arc<dyn Vm>,
    pub network: Network,
    /// Given back with the rest.
    pub _memory: MemoryLease,
}

impl Powered {
    /// Ends it and gives everything back.
    pub async fn cut(self, host: &Host) {
        if let Err(error) = self.vm.kill().await {
            tracing::error!(%error, "cannot end a hypervisor");
        }
        host.networks.release(&self.network.name);
    }
}

/// Memory and a network, before there is a process. The caller writes the
/// network down before it goes on, so that a crash leaves nothing unowned.
pub async fn prepare(host: &Host, machine: &Machine) -> Result<(MemoryLease, Network)> {
    // 1. The pool must have room for the machine's RAM, which is a file there.
    host.storage.admit(machine.memory)?;
    // 2. Memory: given back when the lease is dropped.
    let memory = host.ledger.admit_memory(&machine.owner, machine.memory)?;
    // 3. A network: the caller releases it if anything after this fails.
    let network = host.networks.take().await?;
    Ok((memory, network))
}

/// Starts the hypervisor. Short, and not to be interrupted: a process that was
/// started is always returned.
pub async fn power(
    host: &Host,
    machine: &Machine,
    memory: MemoryLease,
    mut network: Network,
) -> Result<Powered> {
    let powered = async {
        let image = host.storage.image(&machine.image).ok_or_else(|| missing_image(&machine.image))?;
        let Some(taps) = network.taps.take() else {
            return Err(Error::Guest("its network has no taps".into()));
        };
        let launch = Launch {
            id: machine.id.clone(),
            directory: host.storage.directory(&machine.id),
            socket: host.vm_socket(&machine.id),
            cpus: machine.cpus,
            memory: machine.memory,
            uid: machine.uid,
            kernel: image.kernel,
            initrd: image.initrd,
            netns: network.netns.clone(),
            ctl_tap: taps.ctl,
            eth_tap: taps.eth,
            origin: Origin::Boot,
        };
        Ok(host.driver.start(launch).await?)
    };
    match powered.await {
        Ok(vm) => Ok(Powered { vm, network, _memory: memory }),
        Err(error) => {
            host.networks.release(&network.name);
            Err(error)
        }
    }
}

/// Waits until the guest answers and has set itself right. May be dropped at
/// any point: it owns nothing.
pub async fn greet(host: &Host, machine: &Machine, powered: &Powered) -> Result<Control> {
    let limit = host.config.machine.boot_timeout.duration();
    let up = async {
        tokio::select! {
            control = tokio::time::timeout(limit, Control::when_up(&powered.network.link)) => match control {
                Ok(control) => control.map_err(lost),
                Err(_) => Err(Error::Guest(format!("it did not come up within {} s", limit.as_secs()))),
            },
            exit = powered.vm.wait() => Err(Error::Guest(format!("it did not come up: {exit}"))),
        }
    };
    let mut control = up.await?;
    control.repair(machine.name.as_str(), machine.fresh, REPAIR).await.map_err(lost)?;
    Ok(control)
}

fn lost(error: GuestError) -> Error {
    Error::Guest(error.to_string())
}

pub fn missing_image(name: &str) -> Refusal {
    let shown = crate::guest::printable(name);
    Refusal::new(
        Code::NotFound,
        format!("there is no image '{shown}'"),
        "leave --image out for the default one",
    )
}
