//! What a machine has, and what it costs.

use crate::{
    block_on,
    support::{
        machine::{MEMORY, Machine, Running, UID},
        subject::Subject,
    },
    timing,
};
use anyhow::{Context, Result, ensure};
use berth_hypervisor::Origin;
use berth_types::ByteSize;
use std::{
    path::Path,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(60);

/// As many CPUs and as much memory as it was given, in a group of its own
/// where the host has such.
pub fn limits(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        let guest = running.guest.as_ref().context("needs a guest")?;
        ensure!(guest.run("nproc")? == "1");
        let total = guest.run("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo")?;
        let total = total.parse::<u64>()? << 10;
        ensure!((MEMORY / 2..=MEMORY).contains(&total), "{total} bytes");
        ensure!(std::fs::metadata(machine.directory.join("ram"))?.len() == MEMORY);
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", running.vm.pid()))?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let there = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].iter().find_map(|mount| {
            let place = Path::new(mount).join(own?);
            place.join("cgroup.procs").exists().then_some(place)
        });
        if let Some(place) = &there {
            let expected = format!("berth/{}.", machine.id);
            ensure!(own.is_some_and(|own| own.starts_with(&expected)), "it is in {own:?}");
            if let Ok(limit) = std::fs::read_to_string(place.join("cpu.max")) {
                ensure!(limit.trim() == "100000 100000", "{limit}");
            }
        }
        running.vm.kill().await?;
        ensure!(there.is_none_or(|place| !place.exists()), "its group stayed");
        Ok(())
    })
}

/// A disk that grew while its machine slept is as large as that in the guest.
pub fn a_larger_disk(subject: &Subject) -> Result<()> {
    let template = subject.template()?.context("needs a guest")?;
    let machine = Machine::empty(subject)?;
    machine.lay(template, &["disk", "ram", "state"])?;
    let size = std::fs::metadata(machine.directory.join("disk"))?.len() + (1 << 30);
    for file in ["disk", "ram", "state"] {
        std::os::unix::fs::chown(machine.directory.join(file), Some(UID), Some(UID))?;
    }
    block_on(async {
        let running = machine.start(Origin::Saved).await?;
        running.vm.resize_disk(ByteSize(size)).await?;
        running.vm.resume().await?;
        let guest = running.guest.as_ref().context("needs a guest")?;
        ensure!(guest.answers(SOON), "it does not answer");
        let sectors = guest.run("cat /sys/class/block/vda/size")?.parse::<u64>()?;
        ensure!(sectors * 512 == size, "{} bytes, not {size}", sectors * 512);
        running.vm.kill().await?;
        Ok(())
    })
}

/// Rates are those of the driver that runs a machine now, not of the one that
/// saved it.
pub fn a_slow_disk_is_slow(subject: &Subject) -> Result<()> {
    let read = "sudo dd if=/dev/vda of=/dev/null bs=512k count=24 iflag=direct 2>/dev/null";
    block_on(async {
        let slow = subject.with_slow_disk(ByteSize::mib(4)).context("it cannot be slowed down")?;
        let mut times = Vec::new();
        for subject in [subject, &slow] {
            let (_machine, running) = Machine::running(subject).await?;
            let guest = running.guest.as_ref().context("needs a guest")?;
            let begun = Instant::now();
            guest.run(read)?;
            times.push(begun.elapsed());
            running.vm.kill().await?;
        }
        // Twelve megabytes: four at once, and eight at four a second.
        let least = Duration::from_secs(2);
        ensure!(matches!(times.as_slice(), [_, slow] if *slow >= least), "{times:?}");
        Ok(())
    })
}

/// Sixteen times the memory: the same device state and the same time to resume,
/// because RAM is not copied.
pub fn size_does_not_matter(subject: &Subject) -> Result<()> {
    const RUNS: usize = 9;
    let mut sizes = Vec::new();
    for memory in [MEMORY, 4 << 30] {
        let mut machine = if memory == MEMORY { Machine::empty(subject)? } else { Machine::new(subject)? };
        machine.memory = memory;
        block_on(async {
            let running = match subject.template()? {
                Some(template) if memory == MEMORY => machine.wake(template).await?,
                _ => machine.start(Origin::Boot).await?,
            };
            put_away(&running).await
        })?;
        sizes.push((machine, Vec::new()));
    }
    // By turns, so that a host that is busy for a while is so for both.
    for _ in 0..RUNS {
        for (machine, runs) in &mut sizes {
            block_on(async {
                runs.push(resumed(subject, machine).await?);
                Ok(())
            })?;
        }
    }
    let mut medians = Vec::new();
    for (machine, mut runs) in sizes {
        let state = state_size(&machine)?;
        runs.sort();
        let median = runs.get(RUNS / 2).copied().unwrap_or_default();
        eprintln!(
            "figures: {}: {} MiB of memory: device state {state} bytes, start to resumed {median:?} ({:?} to {:?})",
            subject.name(),
            machine.memory >> 20,
            runs.first().copied().unwrap_or_default(),
            runs.last().copied().unwrap_or_default(),
        );
        medians.push(median);
    }
    let [small, large] = medians.as_slice() else { anyhow::bail!("not two sizes") };
    let ratio = large.as_secs_f64().max(small.as_secs_f64()) / large.as_secs_f64().min(small.as_secs_f64());
    ensure!(ratio <= 1.25, "{small:?} and {large:?} are {ratio:.2} apart");
    Ok(())
}

/// From the start of a process to a machine that runs; then it is put away again.
async fn resumed(subject: &Subject, machine: &Machine) -> Result<Duration> {
    let begun = Instant::now();
    let running = machine.start(Origin::Saved).await?;
    running.vm.resume().await?;
    let resumed = begun.elapsed();
    let guest = running.guest.as_ref().context("needs a guest")?;
    ensure!(guest.answers(SOON), "it does not answer");
    timing(subject, &format!("{} MiB: start to an answer", machine.memory >> 20), begun);
    put_away(&running).await?;
    let state = state_size(machine)?;
    ensure!(state < 1 << 20, "a device state of {state} bytes");
    Ok(resumed)
}

fn state_size(machine: &Machine) -> Result<u64> {
    Ok(std::fs::metadata(machine.directory.join("state"))?.len())
}

async fn put_away(running: &Running) -> Result<()> {
    running.vm.pause().await?;
    running.vm.save().await?;
    running.vm.kill().await?;
    Ok(())
}
