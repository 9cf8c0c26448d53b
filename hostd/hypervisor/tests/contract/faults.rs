//! What must fail, in time, with a reason and without a trace.

use crate::{
    block_on,
    support::{machine::Machine, subject::Subject},
};
use anyhow::{Context, Result, bail, ensure};
use berth_hypervisor::{Error, Origin};
use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use std::{fs::File, time::Duration};
use tokio::{sync::oneshot, time::timeout};

const LIMIT: Duration = Duration::from_secs(60);

/// A start that fails: the error, and proof that nothing stayed.
async fn refused(machine: &Machine, origin: Origin) -> Result<Error> {
    let (launch, _) = machine.launch(origin)?;
    let error = match timeout(LIMIT, machine.driver.start(launch)).await.context("it hangs")? {
        Err(error) => error,
        Ok(vm) => {
            vm.kill().await?;
            bail!("it started");
        }
    };
    gone(machine).await?;
    Ok(error)
}

async fn gone(machine: &Machine) -> Result<()> {
    let none = async {
        while !machine.processes()?.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::Ok(())
    };
    timeout(LIMIT, none).await.context("a process stayed")??;
    ensure!(!machine.socket().exists(), "a socket stayed");
    Ok(())
}

pub fn damaged_state(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        let path = machine.directory.join("state");
        running.vm.pause().await?;
        running.vm.save().await?;
        running.vm.kill().await?;
        let good = std::fs::read(&path)?;
        let half = good.get(..good.len() / 2).unwrap_or_default();
        let flipped: Vec<u8> = good.iter().map(|byte| !byte).collect();
        for (what, bytes) in [("cut", half), ("empty", &[]), ("garbled", &flipped)] {
            std::fs::write(&path, bytes)?;
            let error =
                refused(&machine, Origin::Saved).await.with_context(|| format!("a state that is {what}"))?;
            ensure!(matches!(error, Error::Refused { .. }), "{what}: {error:?}");
        }
        Ok(())
    })
}

pub fn missing_state(subject: &Subject) -> Result<()> {
    let machine = Machine::new(subject)?;
    File::create(machine.directory.join("ram"))?.set_len(crate::support::machine::MEMORY)?;
    block_on(async { refused(&machine, Origin::Saved).await.map(drop) })
}

pub fn missing_disk(subject: &Subject) -> Result<()> {
    let machine = Machine::new(subject)?;
    std::fs::remove_file(machine.directory.join("disk"))?;
    block_on(async {
        let error = refused(&machine, Origin::Boot).await?;
        ensure!(
            matches!(&error, Error::Refused { message, .. } if message.contains("No such file")),
            "{error:?}"
        );
        Ok(())
    })
}

pub fn missing_kernel(subject: &Subject) -> Result<()> {
    let machine = Machine::new(subject)?;
    block_on(async {
        let (mut launch, _) = machine.launch(Origin::Boot)?;
        launch.kernel = machine.directory.join("no-such-kernel");
        let Err(error) = timeout(LIMIT, machine.driver.start(launch)).await? else { bail!("it started") };
        ensure!(
            matches!(&error, Error::Refused { message, .. } if message.contains("no-such-kernel")),
            "{error:?}"
        );
        gone(&machine).await
    })
}

pub fn memory_of_another_size(subject: &Subject) -> Result<()> {
    let machine = Machine::new(subject)?;
    File::create(machine.directory.join("ram"))?.set_len(4096)?;
    std::fs::write(machine.directory.join("state"), "")?;
    block_on(async { refused(&machine, Origin::Saved).await.map(drop) })
}

/// Two machines on one disk would destroy it.
pub fn one_disk_one_machine(subject: &Subject) -> Result<()> {
    let second = Machine::empty(subject)?;
    block_on(async {
        let (first, running) = Machine::running(subject).await?;
        std::fs::hard_link(first.directory.join("disk"), second.directory.join("disk"))?;
        let error = refused(&second, Origin::Boot).await?;
        ensure!(matches!(&error, Error::Refused { message, .. } if message.contains("lock")), "{error:?}");
        running.vm.kill().await?;
        Ok(())
    })
}

/// Whoever stops waiting for a start leaves nothing behind.
pub fn a_start_given_up(subject: &Subject) -> Result<()> {
    for patience in [0, 1, 5, 20, 50] {
        let machine = Machine::new(subject)?;
        block_on(async {
            let (launch, _) = machine.launch(Origin::Boot)?;
            let started = timeout(Duration::from_millis(patience), machine.driver.start(launch)).await;
            if let Ok(vm) = started {
                vm?.kill().await?;
            }
            Ok(())
        })?;
        // The runtime's end has waited for what was still being done.
        block_on(gone(&machine)).with_context(|| format!("given up after {patience} ms"))?;
    }
    Ok(())
}

/// Device state of a machine that runs on fits nothing.
pub fn save_while_running(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        let _ = std::fs::remove_file(machine.directory.join("state"));
        let saved = running.vm.save().await;
        ensure!(matches!(saved, Err(Error::Refused { .. })), "{saved:?}");
        ensure!(!machine.directory.join("state").exists());
        running.vm.kill().await?;
        Ok(())
    })
}

/// Nobody waits for what will not come.
pub fn memory_that_never_comes(subject: &Subject) -> Result<()> {
    let machine = Machine::empty(subject)?;
    let template = subject.template()?.context("needs a guest")?;
    machine.lay(template, &["disk", "ram", "state"])?;
    block_on(async {
        let (mut launch, _) = machine.launch(Origin::Saved)?;
        let (laid, laid_out) = oneshot::channel();
        launch.laid_out = Some(laid_out);
        drop(laid);
        let started = timeout(LIMIT, machine.driver.start(launch)).await.context("it hangs")?;
        ensure!(started.is_err(), "it started");
        gone(&machine).await?;
        machine.wake(template).await.context("waking it after that")?.vm.kill().await?;
        Ok(())
    })
}

/// Whoever waits for a restore is told at once, and the saved machine is as it was.
pub fn a_hypervisor_that_dies_while_it_loads(subject: &Subject) -> Result<()> {
    let machine = Machine::empty(subject)?;
    let template = subject.template()?.context("needs a guest")?;
    machine.lay(template, &["disk", "ram", "state"])?;
    let before = std::fs::read(machine.directory.join("state"))?;
    block_on(async {
        let (launch, _) = machine.launch(Origin::Saved)?;
        let killer = async {
            loop {
                if let Some(process) = machine.processes()?.first() {
                    let pid = process.trim_start_matches("/proc/").parse()?;
                    return Ok::<_, anyhow::Error>(signal::kill(Pid::from_raw(pid), Signal::SIGKILL)?);
                }
                tokio::task::yield_now().await;
            }
        };
        let (started, killed) =
            timeout(LIMIT, async { tokio::join!(machine.driver.start(launch), killer) }).await?;
        killed?;
        // It may have been loaded before it was found.
        if let Ok(vm) = started {
            vm.kill().await?;
        }
        gone(&machine).await?;
        ensure!(std::fs::read(machine.directory.join("state"))? == before, "the state was changed");
        ensure!(!machine.directory.join("restoring").exists(), "its files stayed");
        let again = machine.wake(template).await.context("waking it after that")?;
        again.vm.kill().await?;
        Ok(())
    })
}
