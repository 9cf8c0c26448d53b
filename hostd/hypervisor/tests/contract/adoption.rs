//! Hypervisors outlive hostd, and the next one finds them.

use crate::{
    block_on, runtime,
    support::{
        guest::Guest,
        machine::{Machine, Running, UID},
        subject::Subject,
    },
};
use anyhow::{Context, Result, ensure};
use berth_guest_protocol::Shutdown;
use berth_hypervisor::{Exit, Known};
use std::{
    os::unix::process::CommandExt as _,
    process::{Child, Command},
};

/// Starts a machine and ends everything of the driver but the process.
fn orphan(subject: &Subject) -> Result<(Machine, Option<Guest>, Known)> {
    let runtime = runtime()?;
    let (machine, Running { vm, guest }) = runtime.block_on(Machine::running(subject))?;
    let known = machine.known(&vm);
    Ok((machine, guest, known))
}

pub fn a_dropped_vm_lives_on(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        let known = machine.known(&running.vm);
        drop(running.vm);
        let vm = machine.driver.adopt(known, UID).await?.context("it ended with its handle")?;
        vm.kill().await?;
        Ok(())
    })
}

pub fn adopted_by_another_driver(subject: &Subject) -> Result<()> {
    let (machine, guest, known) = orphan(subject)?;
    let boot = || guest.as_ref().map(|guest| guest.run("cat /proc/sys/kernel/random/boot_id")).transpose();
    let before = boot()?;
    block_on(async {
        let vm = subject.driver()?.adopt(known.clone(), UID).await?.context("it is gone")?;
        ensure!(vm.pid() == known.pid && vm.started() == known.started);
        ensure!(boot()? == before, "not the same boot");
        vm.pause().await?;
        vm.resume().await?;
        ensure!(boot()? == before, "it does not go on");
        vm.kill().await?;
        // Nobody's child: it is gone, and nobody was told how.
        ensure!(vm.wait().await == Exit::Unknown);
        ensure!(!machine.socket().exists(), "the socket is still there");
        ensure!(subject.driver()?.adopt(known, UID).await?.is_none(), "a dead process was adopted");
        Ok(())
    })
}

pub fn a_stranger_is_not_adopted(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        let known = machine.known(&running.vm);
        let driver = subject.driver()?;
        let later = Known { started: known.started + 1, ..known.clone() };
        ensure!(driver.adopt(later, UID).await?.is_none(), "another start time");
        let nobody = Known { pid: i32::MAX, ..known };
        ensure!(driver.adopt(nobody, UID).await?.is_none(), "a pid that never was");
        running.vm.kill().await?;
        Ok(())
    })
}

/// Such as one that an earlier version of hostd started.
pub fn an_unconfined_process_is_ended(subject: &Subject) -> Result<()> {
    let (machine, mut stranger) = (Machine::new(subject)?, Command::new("sleep"));
    let stranger = stranger.arg("infinity").uid(UID).gid(UID);
    let stranger = Ended(stranger.spawn()?);
    let pid = stranger.0.id();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').context("no name")?.1;
    let started = fields.split_whitespace().nth(19).context("no start time")?.parse()?;
    let (id, directory, socket) = (machine.id.clone(), machine.directory.clone(), machine.socket());
    let known = Known { id, pid: pid.try_into()?, started, directory, socket };
    block_on(async {
        let adopted = subject.driver()?.adopt(known, UID).await;
        let error = adopted.err().context("it was adopted")?.to_string();
        ensure!(error.contains("confinement"), "{error}");
        Ok(())
    })?;
    let state = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    ensure!(state.contains("State:\tZ"), "it runs on: {state}");
    Ok(())
}

/// A process that a case started.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn adopted_guest_power_off(subject: &Subject) -> Result<()> {
    let (_machine, guest, known) = orphan(subject)?;
    block_on(async {
        let vm = subject.driver()?.adopt(known, UID).await?.context("it is gone")?;
        let running = Running { vm, guest };
        running.guest.as_ref().context("needs a guest")?.shut_down(Shutdown::PowerOff)?;
        ensure!(crate::endings::ending(&running).await? == Exit::Clean);
        Ok(())
    })
}
