//! Start, pause, save, restore.

use crate::{
    block_on,
    support::{
        machine::{MEMORY, Machine, UID},
        subject::Subject,
    },
    timing,
};
use anyhow::{Context, Result, ensure};
use berth_hypervisor::{
    Origin,
    tasks::{self, Task},
};
use std::{
    fs::File,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Silence of this length is a pause, not a slow guest.
const SILENCE: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(60);

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
            // The file is empty while it is written. A process that does not run any more never ends the second.
            let first = guest.run("until n=$(cat /dev/shm/n); test -n \"$n\"; do :; done; echo $n")?;
            guest.run(&format!(
                "until n=$(cat /dev/shm/n); test -n \"$n\" && test $n -gt {first}; do sleep 0.02; done"
            ))?;
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
    let own = tasks::of(i32::try_from(std::process::id())?)?;
    let own = own.first().context("no thread of ours")?;
    let all = tasks::of(pid)?;
    ensure!(all.iter().filter(|task| task.field("Seccomp") == "2").count() > 0, "no thread has a filter");
    for task in &all {
        hygienic(task, pid, own).with_context(|| format!("thread {} ({})", task.tid, task.name))?;
    }
    ensure!(process.join("cwd").read_link()? == machine.directory);
    let limits = std::fs::read_to_string(process.join("limits"))?;
    ensure!(limits.lines().any(|line| line.starts_with("Max core file size") && line.contains(" 1 ")));
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

/// Real-time signals, with which a hypervisor stops its vCPUs.
const REAL_TIME: u64 = !0 << 33;
/// SIGPIPE, as both do, and SIGCHLD, as Cloud Hypervisor does.
const IGNORED: u64 = 1 << 12 | 1 << 16;

/// One thread of a machine's process: what it may, and what it was left with.
fn hygienic(task: &Task, pid: i32, own: &Task) -> Result<()> {
    for ids in ["Uid", "Gid"] {
        ensure!(task.has_only(ids, UID), "{ids} {}", task.field(ids));
    }
    // At most the group that KVM's device belongs to.
    let device = std::path::Path::new("/dev/kvm").metadata().map_or(0, |found| found.gid()).to_string();
    ensure!(["", &device].contains(&task.field("Groups")), "groups {}", task.field("Groups"));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        ensure!(task.set(set) == 0, "{set} {}", task.field(set));
    }
    ensure!(task.field("NoNewPrivs") == "1", "it may gain privileges");
    ensure!(task.field("Seccomp") == "2", "it has no filter");
    // QEMU's threads block most signals themselves, but not its first one; and with these
    // Cloud Hypervisor stops its vCPUs.
    let first = u32::try_from(pid)? == task.tid;
    if first || task.name.starts_with("vcpu") {
        ensure!(task.set("SigBlk") & REAL_TIME == 0, "it blocks {}", task.field("SigBlk"));
    }
    ensure!(task.set("SigIgn") & !IGNORED == 0, "it ignores {}", task.field("SigIgn"));
    for name in ["ipc", "mnt", "net", "pid", "uts"] {
        ensure!(task.namespace(name)? != own.namespace(name)?, "it is in the host's {name} namespace");
    }
    ensure!(task.namespace("user")? == own.namespace("user")?, "it is in a user namespace");
    let all = tasks::of(pid)?;
    let first = all.iter().find(|other| u32::try_from(pid).is_ok_and(|pid| pid == other.tid));
    for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        let first = first.context("no first thread")?.namespace(name)?;
        ensure!(task.namespace(name)? == first, "it is in a {name} namespace of its own");
    }
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
