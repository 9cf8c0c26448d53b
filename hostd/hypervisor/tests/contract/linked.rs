//! QEMU processes that were linked before anybody needed one.

use crate::{
    block_on,
    lifecycle::confined,
    support::{
        machine::Machine,
        subject::{Subject, linking_qemu},
    },
};
use anyhow::{Context, Result, ensure};
use berth_hypervisor::qemu::LIBRARY;
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::{
    fs,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(20);

/// One that waits becomes the machine's, as confined as any; and where those that
/// waited have ended, a start is a whole one.
pub fn linked_ahead(subject: &Subject) -> Result<()> {
    let template = subject.template()?.context("needs a guest")?;
    let mut machine = Machine::empty(subject)?;
    block_on(async {
        machine.driver = linking_qemu()?;
        let ready = until(|waiting| waiting.len() == 2).await?;
        let running = machine.wake(template).await?;
        ensure!(ready.contains(&running.vm.pid()), "{ready:?} waited, and it is {}", running.vm.pid());
        confined(&machine, running.vm.pid())?;
        running.vm.kill().await?;
        // The place of one that was taken is filled again.
        let ready = until(|waiting| waiting.len() == 2).await?;
        for pid in &ready {
            kill_process(Pid::from_raw(*pid).context("a pid of 0")?, Signal::KILL)?;
        }
        until(<[i32]>::is_empty).await?;
        let running = machine.wake(template).await?;
        ensure!(!ready.contains(&running.vm.pid()));
        running.vm.kill().await?;
        Ok(())
    })?;
    drop(machine);
    block_on(async { until(<[i32]>::is_empty).await.map(drop).context("the driver is gone") })
}

/// Children of ours that wait for an order, when there are as many as wanted. Other
/// cases have none.
async fn until(wanted: impl Fn(&[i32]) -> bool) -> Result<Vec<i32>> {
    let begun = Instant::now();
    loop {
        let waiting = waiting()?;
        if wanted(&waiting) {
            return Ok(waiting);
        }
        ensure!(begun.elapsed() < SOON, "{waiting:?} wait");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn waiting() -> Result<Vec<i32>> {
    let processes = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(processes.filter(|pid| waits(*pid).unwrap_or(false)).collect())
}

/// It is our child, has the library, and is nobody's yet. One that has ended has no
/// environment.
fn waits(pid: i32) -> Result<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let ours = status.lines().any(|line| line == format!("PPid:\t{}", getpid()));
    let environment = fs::read(format!("/proc/{pid}/environ"))?;
    let preloaded = environment.windows(LIBRARY.len()).any(|part| part == LIBRARY.as_bytes());
    Ok(ours && preloaded && fs::read_link(format!("/proc/{pid}/cwd"))?.as_os_str() == "/")
}
