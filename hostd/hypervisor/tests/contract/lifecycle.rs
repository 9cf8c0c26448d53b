//! Start, pause, save, restore.

use crate::{
    block_on,
    support::{
        machine::{MEMORY, Machine},
        subject::Subject,
    },
    timing,
};
use anyhow::{Context, Result, ensure};
use berth_hypervisor::Origin;
use std::{
    fs::File,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Silence of this length is a pause, not a slow guest.
const SILENCE: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(10);

pub fn pause_and_resume(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        ensure!(machine.directory.join("ram").metadata()?.len() == MEMORY);
        ensure!(machine.directory.join("console.log").metadata()?.len() > 0);
        let begun = Instant::now();
        running.vm.pause().await?;
        timing(subject, "pause", begun);
        running.vm.pause().await.context("pausing twice")?;
        if let Some(guest) = &running.guest {
            ensure!(!guest.answers(SILENCE), "a paused guest answers");
        }
        let paused = running.vm.cpu_time();
        let begun = Instant::now();
        running.vm.resume().await?;
        timing(subject, "resume", begun);
        running.vm.resume().await.context("resuming twice")?;
        if let Some(guest) = &running.guest {
            ensure!(guest.answers(SOON), "a resumed guest does not answer");
            ensure!(running.vm.cpu_time() > paused, "a guest that answers uses no CPU");
        }
        running.vm.kill().await?;
        ensure!(running.vm.cpu_time() >= paused, "the clock of an ended process jumped back");
        Ok(())
    })
}

pub fn save_and_restore(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        let (ram, state) = (machine.directory.join("ram"), machine.directory.join("state"));
        if let Some(guest) = &running.guest {
            guest.run(
                "(i=0; while :; do i=$((i+1)); echo $i > /dev/shm/n; sleep 0.02; done) >/dev/null 2>&1 &",
            )?;
        }
        let boot = running.guest.as_ref().map(|guest| guest.run(BOOT_ID)).transpose()?;
        let begun = Instant::now();
        running.vm.pause().await?;
        running.vm.save().await?;
        timing(subject, "pause and save", begun);
        let inode = ram.metadata()?.ino();
        running.vm.kill().await?;
        ensure!(state.metadata()?.len() < 1 << 20, "a state of {} bytes", state.metadata()?.len());
        timing(subject, &format!("state of {} bytes", state.metadata()?.len()), begun);

        let begun = Instant::now();
        let restored = machine.start(Origin::Saved).await?;
        timing(subject, "start and load", begun);
        ensure!(ram.metadata()?.ino() == inode, "the memory was copied");
        if let Some(guest) = &restored.guest {
            ensure!(!guest.answers(SILENCE), "a restored guest runs before it is resumed");
        }
        let begun = Instant::now();
        restored.vm.resume().await?;
        if let Some(guest) = &restored.guest {
            ensure!(guest.answers(SOON), "a restored guest does not answer");
            timing(subject, "resume to an answer", begun);
            ensure!(Some(guest.run(BOOT_ID)?) == boot, "it booted anew");
            let first: u64 = guest.run("cat /dev/shm/n")?.parse()?;
            let then: u64 = guest.run("sleep 0.5; cat /dev/shm/n")?.parse()?;
            ensure!(then > first, "its processes do not run");
            guest.run("sudo dd if=/dev/vda of=/dev/null bs=1M count=4 iflag=direct 2>/dev/null")?;
        }
        restored.vm.kill().await?;
        Ok(())
    })
}

/// What is in its memory arrives when its process is there already.
pub fn memory_that_comes_late(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        running.vm.pause().await?;
        running.vm.save().await?;
        running.vm.kill().await?;
        let ram = machine.directory.join("ram");
        let aside = ram.with_extension("aside");
        std::fs::rename(&ram, &aside)?;
        File::create(&ram)?.set_len(aside.metadata()?.len())?;
        let (mut launch, guest) = machine.launch(Origin::Saved)?;
        let (laid, laid_out) = oneshot::channel();
        launch.laid_out = Some(laid_out);
        let filling = async {
            while guest.is_some() && machine.processes()?.is_empty() {
                tokio::task::yield_now().await;
            }
            std::io::copy(&mut File::open(&aside)?, &mut File::options().write(true).open(&ram)?)?;
            ensure!(laid.send(()).is_ok(), "nobody waited for it");
            Ok(())
        };
        let (started, filled) = tokio::join!(machine.driver.start(launch), filling);
        filled?;
        let vm = started?;
        machine.watch(&vm)?;
        vm.resume().await?;
        if let Some(guest) = &guest {
            ensure!(guest.answers(SOON), "a guest whose memory came late does not answer");
        }
        vm.kill().await?;
        Ok(())
    })
}

pub fn save_and_continue(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        for _ in 0..3 {
            running.vm.pause().await?;
            running.vm.save().await?;
            running.vm.resume().await?;
            if let Some(guest) = &running.guest {
                ensure!(guest.answers(SOON), "a saved guest does not go on");
                guest.run("echo kept > note && sync && cat note")?;
            }
        }
        ensure!(!machine.directory.join("state.tmp").exists());
        running.vm.kill().await?;
        Ok(())
    })
}

pub fn confinement(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        confined(&machine, running.vm.pid())?;
        running.vm.kill().await?;
        Ok(())
    })
}

/// A machine's process has what it needs, and nothing else.
pub fn confined(machine: &Machine, pid: i32) -> Result<()> {
    let process = std::path::PathBuf::from(format!("/proc/{}", pid));
    let status = std::fs::read_to_string(process.join("status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap_or_default()
    };
    for name in ["Uid", "Gid"] {
        ensure!(field(name) == "765432 765432 765432 765432", "{name} {}", field(name));
    }
    // At most the group that KVM's device belongs to.
    let device = std::path::Path::new("/dev/kvm").metadata().map_or(0, |found| found.gid()).to_string();
    ensure!(["", &device].contains(&field("Groups").as_str()), "groups {}", field("Groups"));
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        ensure!(field(name).chars().all(|digit| digit == '0'), "{name} {}", field(name));
    }
    ensure!(field("NoNewPrivs") == "1", "{status}");
    filtered(&process)?;
    ensure!(process.join("cwd").read_link()? == machine.directory);
    ensure!(process.join("ns/net").read_link()? != std::path::Path::new("/proc/self/ns/net").read_link()?);
    let limits = std::fs::read_to_string(process.join("limits"))?;
    ensure!(limits.lines().any(|line| line.starts_with("Max core file size") && line.contains(" 0 ")));
    ensure!(std::fs::read_to_string(process.join("oom_score_adj"))?.trim() == "500");
    // A session of its own: no terminal, no signal meant for hostd's group.
    let stat = std::fs::read_to_string(process.join("stat"))?;
    let session = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(3));
    ensure!(session == Some(&pid.to_string()), "session {session:?}");
    for entry in std::fs::read_dir(process.join("fd"))? {
        let target = entry?.path().read_link()?.display().to_string();
        let own = ["disk", "ram", "console.log", "hypervisor.log"]
            .iter()
            .any(|file| target == machine.directory.join(file).display().to_string());
        let anonymous =
            ["anon_inode:", "socket:", "pipe:", "/memfd:"].iter().any(|kind| target.starts_with(kind));
        let device = ["/dev/null", "/dev/net/tun", "/dev/kvm", "/dev/urandom"].contains(&target.as_str());
        let own = own || target == machine.socket().with_extension("events").display().to_string();
        // Everybody's, and only read: the image that it was booted from.
        let own = own || machine.boots_from().iter().any(|file| target == file.display().to_string());
        ensure!(own || anonymous || device, "it holds {target}");
    }
    Ok(())
}

/// Every thread that does anything has a filter. Cloud Hypervisor's first one
/// waits for the others, and KVM's worker is the kernel's own.
fn filtered(process: &std::path::Path) -> Result<()> {
    let mut found = 0;
    for entry in std::fs::read_dir(process.join("task"))? {
        let task = entry?.path();
        let name = std::fs::read_to_string(task.join("comm"))?;
        let status = std::fs::read_to_string(task.join("status"))?;
        let has_filter = status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]));
        let waits = name.trim() == "cloud-hyperviso" || name.starts_with("kvm-nx");
        ensure!(has_filter || waits, "{} has no filter", name.trim());
        found += usize::from(has_filter);
    }
    ensure!(found > 0, "no thread has a filter");
    Ok(())
}

/// What the guest's kernel and the driver say is in one log, which a restore
/// goes on with.
pub fn console(subject: &Subject) -> Result<()> {
    block_on(async {
        let (machine, running) = Machine::running(subject).await?;
        let guest = running.guest.as_ref().context("needs a guest")?;
        // Level 0: printed however quiet the kernel was told to be.
        let say = |word: &str| guest.run(&format!("sudo sh -c 'echo \"<0>berth-test {word}\" > /dev/kmsg'"));
        say("first")?;
        running.vm.pause().await?;
        running.vm.save().await?;
        running.vm.kill().await?;
        let again = machine.start(Origin::Saved).await?;
        again.vm.resume().await?;
        let guest = again.guest.as_ref().context("needs a guest")?;
        guest.run("sudo sh -c 'echo \"<0>berth-test second\" > /dev/kmsg'")?;
        let console = machine.console();
        let place = |word: &str| console.find(word).with_context(|| format!("no {word:?} in:\n{console}"));
        ensure!(place("berth-test first")? < place("berth-test second")?);
        ensure!(console.matches("berth: restored").count() == 2, "{console}");
        again.vm.kill().await?;
        Ok(())
    })
}

const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
