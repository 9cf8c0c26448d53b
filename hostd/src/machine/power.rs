//! A hypervisor and what it needs: given before it starts, and back when it ends.

use crate::{
    error::{Error, Result},
    guest::{Control, Heard, describe, printable},
    host::Host,
    ledger::MemoryLease,
    net::Network,
    template,
};
use berth_guest_client::GuestError;
use berth_hypervisor::{Launch, Origin, Vm};
use berth_types::{ByteSize, Code, Generation, Machine, Refusal};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, time::timeout};

/// How long a guest that answers may take to repair itself.
const REPAIR: Duration = Duration::from_secs(30);

/// A hypervisor that runs, and what it holds.
pub struct Powered {
    pub vm: Arc<dyn Vm>,
    pub network: Network,
    /// What guest-init was heard to speak, now or when its memory was saved.
    pub heard: Heard,
    /// Given back with the rest.
    pub _memory: MemoryLease,
}

impl Powered {
    /// Ends it and gives everything back.
    pub async fn cut(self, host: &Host) {
        if let Err(error) = self.vm.kill().await {
            tracing::error!(%error, "cannot end a hypervisor");
        }
        self.network.link.hang_up().await;
        host.give_back(&self.network.name);
    }
}

/// Memory and a network, before there is a process. The caller writes the
/// network down before it goes on, so that a crash leaves nothing unowned.
pub async fn prepare(host: &Host, machine: &Machine) -> Result<(MemoryLease, Network)> {
    // 1. The pool must have room for the machine's RAM, which is a file there.
    admit_room(host, machine)?;
    // 2. Memory: given back when the lease is dropped.
    let memory = if machine.template {
        host.ledger.admit_template(machine.memory)?
    } else {
        host.ledger.admit_memory(&machine.owner, machine.memory)?
    };
    // 3. A network: the caller releases it if anything after this fails.
    let network = host.networks.take().await?;
    Ok((memory, network))
}

/// Where it sleeps its RAM is in the pool already, or shared until it is written to.
pub fn admit_room(host: &Host, machine: &Machine) -> Result<(), Refusal> {
    let need = if machine.sleeps_in.is_some() { ByteSize(0) } else { machine.memory };
    host.storage.admit_existing(need)
}

/// Starts the hypervisor. Short, and not to be interrupted: a process that was
/// started is always returned. From its disk, or from a memory that may be on its
/// way until that is `laid_out`.
pub async fn power(
    host: &Host,
    machine: &Machine,
    memory: MemoryLease,
    network: Network,
    laid_out: Option<oneshot::Receiver<()>>,
) -> Result<Powered, (Error, MemoryLease, Network)> {
    let powered = async {
        let image = host.storage.image(&machine.image).ok_or_else(|| missing_image(&machine.image))?;
        let Some(taps) = &network.taps else {
            return Err(Error::Guest("its network has no taps".into()));
        };
        let taps = taps.share().map_err(|source| Error::Io { operation: "share a tap", source })?;
        let launch = Launch {
            id: machine.id.clone(),
            directory: host.storage.directory(&machine.id),
            socket: host.vm_socket(&machine.id),
            cpus: machine.cpus,
            memory: machine.memory,
            disk: machine.disk,
            uid: machine.uid,
            kernel: image.kernel,
            initrd: image.initrd,
            netns: network.netns.clone(),
            ctl_tap: taps.ctl,
            eth_tap: taps.eth,
            origin: if laid_out.is_some() { Origin::Saved } else { Origin::Boot },
            laid_out,
        };
        Ok(host.driver.start(launch).await?)
    };
    match powered.await {
        Ok(vm) => Ok(Powered { vm, network, heard: Heard::default(), _memory: memory }),
        Err(error) => Err((error, memory, network)),
    }
}

/// Starts the hypervisor on the memory of a generation, which is laid out meanwhile, and
/// lets it go on. Each `moment` at which a crash would leave something else is told.
pub async fn resume(
    host: &Host,
    machine: &Machine,
    generation: &Generation,
    memory: MemoryLease,
    network: Network,
    moment: fn(&'static str),
) -> Result<Powered, (Error, MemoryLease, Network)> {
    let directory = host.storage.directory(&machine.id);
    let clock = Instant::now();
    if let Err(error) = host.archive.thaw(&generation.id, machine, directory.clone()).await {
        return Err((error, memory, network));
    }
    let thawed = clock.elapsed();
    moment("wake.thawed");
    host.storage.warm(&machine.id);
    let (laid, laid_out) = oneshot::channel();
    let parting = async {
        host.archive.part(&generation.id, machine, directory).await?;
        let _ = laid.send(());
        if let Some(template) = template::like(host, machine) {
            host.storage.read_ahead(&machine.id, &template.id);
        }
        Ok(())
    };
    let starting = power(host, machine, memory, network, Some(laid_out));
    let (powered, parted) = tokio::join!(starting, parting);
    let (mut powered, parted) = match (powered, parted) {
        (Err((_, memory, network)), Err(error)) => return Err((error, memory, network)),
        (Err(failed), Ok(())) => return Err(failed),
        (Ok(powered), parted) => (powered, parted),
    };
    moment("wake.parted");
    let going = async {
        parted?;
        if machine.disk > generation.disk {
            powered.vm.resize_disk(machine.disk).await?;
        }
        host.storage.mark_awake(&machine.id, &generation.id).await?;
        Ok::<_, Error>(powered.vm.resume().await?)
    };
    match going.await {
        Ok(()) => {
            powered.heard = Heard::new(generation.guest);
            // Used up: with RAM that has gone on it would be somebody else's past.
            host.storage.forget_state(&machine.id);
            tracing::debug!(machine = %machine.id, ?thawed, resumed = ?clock.elapsed(), "resumed");
            Ok(powered)
        }
        Err(error) => {
            let Powered { vm, network, _memory, .. } = powered;
            let _ = vm.kill().await;
            Err((error, _memory, network))
        }
    }
}

/// Waits until the guest answers and has set itself right. May be dropped at
/// any point: it owns nothing.
pub async fn greet(host: &Host, machine: &Machine, powered: &Powered, limit: Duration) -> Result<Control> {
    let (link, equipment) = (&powered.network.link, crate::egress::equipment(host, machine));
    let clock = Instant::now();
    let control = tokio::select! {
        control = timeout(limit, Control::when_repaired(link, machine, Some(equipment), &powered.heard, REPAIR)) => match control {
            Ok(control) => control.map_err(lost)?,
            Err(_) => return Err(Error::Guest(format!("it did not come up within {} s", limit.as_secs()))),
        },
        exit = powered.vm.wait() => return Err(Error::Guest(format!("it did not come up: {exit}"))),
    };
    tracing::debug!(machine = %machine.id, took = ?clock.elapsed(), "the guest is up");
    Ok(control)
}

pub fn lost(error: GuestError) -> Error {
    Error::Guest(describe(&error))
}

pub fn missing_image(name: &str) -> Refusal {
    let shown = printable(name);
    Refusal::new(
        Code::NotFound,
        format!("there is no image '{shown}'"),
        "leave --image out for the default one",
    )
}
