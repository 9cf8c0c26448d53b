//! A copy of a template that is run for nobody, once: which of its memory it touches
//! until a first command has ended is what every other copy will need first.

use super::{FAMILIAR, FREEZE, blank};
use crate::{
    error::{Error, Result},
    fault, guest,
    host::Host,
    machine::{self, Powered},
};
use berth_types::{Generation, Machine, MachineId};
use std::sync::Arc;

/// Nobody waits for it, and copies of a template that was not tried are only slower.
pub async fn run(host: &Host, template: &Arc<Generation>) {
    if host.storage.has_learnt(&template.id) || host.is_closing() {
        return;
    }
    host.archive.hold(&template.id);
    if let Err(error) = copy(host, template).await {
        tracing::debug!(error = error.chain(), template = %template.id, "a template was not tried");
    }
    host.archive.release(&template.id).await;
}

async fn copy(host: &Host, template: &Generation) -> Result<()> {
    host.storage.admit(template.memory)?;
    let machine = Machine {
        id: MachineId::random(),
        uid: host.store.take_uid(host.config.host.uid_base).await?,
        image: template.image.clone(),
        cpus: template.cpus,
        memory: template.memory,
        disk: template.disk,
        sleeps_in: Some(template.id.clone()),
        fresh: true,
        ..blank(host)
    };
    // The store has no record of it, as of the one that became the template: whatever a
    // crash leaves of it is undone at the next start.
    host.storage.make(&machine, None).await?;
    let tried = start(host, &machine, template).await;
    host.storage.remove(&machine.id).await?;
    tried
}

async fn start(host: &Host, machine: &Machine, template: &Generation) -> Result<()> {
    host.storage.publish(&machine.id).await?;
    let (memory, network) = machine::prepare(host, machine).await?;
    let powered = match machine::resume(host, machine, template, memory, network, |_| ()).await {
        Ok(powered) => powered,
        Err((error, _, network)) => {
            host.give_back(&network.name);
            return Err(error);
        }
    };
    let learnt = tokio::select! {
        learnt = learn(host, machine, template, &powered) => learnt,
        () = host.closes() => Err(Error::Guest("the service closes".into())),
    };
    powered.cut(host).await;
    learnt
}

async fn learn(host: &Host, machine: &Machine, template: &Generation, powered: &Powered) -> Result<()> {
    machine::greet(host, machine, powered, host.boot_limit()).await?;
    guest::run(&powered.network.link, FAMILIAR, FREEZE).await.map_err(machine::lost)?;
    fault::point("template.tried");
    host.storage.learn(powered.vm.pid(), &machine.id, &template.id).await
}
