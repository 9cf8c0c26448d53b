//! How machines end, and what is said of it.

use crate::{
    block_on,
    support::{
        guest::Guest,
        machine::{Machine, Running},
        subject::Subject,
    },
};
use anyhow::{Context, Result, ensure};
use berth_guest_protocol::Shutdown;
use berth_hypervisor::{Error, Exit, Origin};
use nix::{sys::signal, unistd::Pid};
use std::time::Duration;

/// A nested KVM interprets a kernel that panics.
const LIMIT: Duration = Duration::from_secs(180);

pub fn kill(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        ensure!(machine.socket().exists());
        running.vm.kill().await?;
        ensure!(running.vm.wait().await == Exit::Signal(9));
        ensure!(!machine.socket().exists(), "the socket is still there");
        ensure!(signal::kill(Pid::from_raw(running.vm.pid()), None).is_err(), "the process was not reaped");
        running.vm.kill().await.context("killing twice")?;
        for refused in [running.vm.pause().await, running.vm.resume().await, running.vm.save().await] {
            ensure!(matches!(refused, Err(Error::Gone(Exit::Signal(9)))), "{refused:?}");
        }
        if machine.launch(Origin::Boot)?.1.is_none() {
            let again = machine.start(Origin::Boot).await.context("starting again")?;
            again.vm.kill().await?;
        }
        Ok(())
    })
}

pub fn killed_by_another(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        signal::kill(Pid::from_raw(running.vm.pid()), signal::Signal::SIGKILL)?;
        ensure!(ending(&running).await? == Exit::Signal(9));
        ensure!(!machine.socket().exists(), "the socket is still there");
        Ok(())
    })
}

pub fn guest_panic(subject: &Subject) -> Result<()> {
    // A kernel without that key panics when all of its memory is set aside.
    let crash = "sudo sh -c '
        if [ -e /proc/sysrq-trigger ]; then
            echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger
        fi
        echo 2 > /proc/sys/vm/panic_on_oom; echo 1000000 > /proc/sys/vm/min_free_kbytes; tail /dev/zero'";
    ended_by(subject, Exit::Panic, |guest| guest.send(crash).map(drop))
}

pub fn guest_power_off(subject: &Subject) -> Result<()> {
    ended_by(subject, Exit::Clean, |guest| guest.shut_down(Shutdown::PowerOff))
}

pub fn guest_reboot(subject: &Subject) -> Result<()> {
    ended_by(subject, Exit::Reboot, |guest| guest.shut_down(Shutdown::Reboot))
}

fn ended_by(subject: &Subject, exit: Exit, how: impl FnOnce(&Guest) -> Result<()>) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        how(running.guest.as_ref().context("needs a guest")?)?;
        let console = || format!("its console:\n{}", machine.console());
        let ended = ending(&running).await.with_context(console)?;
        ensure!(ended == exit, "{ended:?}, not {exit:?}; {}", console());
        Ok(())
    })
}

pub async fn ending(running: &Running) -> Result<Exit> {
    tokio::time::timeout(LIMIT, running.vm.wait()).await.context("it did not end")
}
