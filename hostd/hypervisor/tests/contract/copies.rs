//! A copy of a machine's directory is a copy of the machine.

use crate::{
    block_on,
    support::{machine::Machine, subject::Subject},
    timing,
};
use anyhow::{Context, Result, ensure};
use std::time::Instant;

/// Three children of one capture, each with the source's memory and a life of
/// its own; the source goes on.
pub fn three_forks(subject: &Subject) -> Result<()> {
    block_on(async {
        let (source, running) = Machine::running(subject).await?;
        let guest = running.guest.as_ref().context("needs a guest")?;
        guest.run("echo before > /dev/shm/memory; echo before > disk; sync")?;
        let boot = guest.run(BOOT_ID)?;
        let capture = Machine::empty(subject)?;
        running.vm.pause().await?;
        running.vm.save().await?;
        capture.lay(&source.directory, FILES)?;
        running.vm.resume().await?;
        let mut children = Vec::new();
        for number in 1..=3 {
            let child = Machine::empty(subject)?;
            let begun = Instant::now();
            let started = child.wake(&capture.directory).await?;
            timing(subject, "copying files, start, load, resume to an answer", begun);
            let inside = started.guest.as_ref().context("needs a guest")?;
            ensure!(inside.run(BOOT_ID)? == boot, "a child booted anew");
            ensure!(inside.run("cat /dev/shm/memory disk")? == "before\nbefore");
            inside.run(&format!("echo {number} > /dev/shm/memory"))?;
            children.push((child, started));
        }
        for (number, (_, started)) in (1..).zip(&children) {
            let inside = started.guest.as_ref().context("needs a guest")?;
            ensure!(inside.run("cat /dev/shm/memory")? == number.to_string(), "children share memory");
        }
        ensure!(guest.run("cat /dev/shm/memory")? == "before", "the source shares memory with a child");
        for (_, started) in &children {
            started.vm.kill().await?;
        }
        running.vm.kill().await?;
        Ok(())
    })
}

/// What was done after a snapshot is undone by going back to it, as often as
/// one likes.
pub fn back_to_a_snapshot(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        let guest = running.guest.as_ref().context("needs a guest")?;
        guest.run("echo kept > note; sync")?;
        let snapshot = Machine::empty(subject)?;
        running.vm.pause().await?;
        running.vm.save().await?;
        snapshot.lay(&machine.directory, FILES)?;
        running.vm.resume().await?;
        guest.run("rm note; echo lost > other; sync")?;
        running.vm.kill().await?;
        for _ in 0..2 {
            let back = machine.wake(&snapshot.directory).await?;
            let guest = back.guest.as_ref().context("needs a guest")?;
            ensure!(guest.run("cat note; ls other 2>/dev/null | wc -l")? == "kept\n0");
            guest.run("rm note; sync")?;
            back.vm.kill().await?;
        }
        Ok(())
    })
}

const FILES: &[&str] = &["disk", "ram", "state"];
const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
