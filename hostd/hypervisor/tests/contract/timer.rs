//! What an emulated guest takes the rate of its timer to be.

use crate::{
    block_on,
    support::{machine::Machine, subject::Subject},
};
use anyhow::{Context, Result, ensure};
use berth_hypervisor::Origin;
use std::process::{Child, Command};

/// The APIC timer of QEMU's CPUs counts at 1 GHz / 16. As the kernel keeps it: ticks for each 2^32 ns.
const RIGHT: f64 = 62.5e6 / 1e9 * 4_294_967_296.0;
const BOOTS: usize = 3;

/// Half of the boots beside this much work were some percent off when their threads had ordinary priority, some by a
/// factor, and one in 260 never came up.
pub fn a_boot_beside_other_work_knows_its_timer(subject: &Subject) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let _work = (0..cores * 6).map(|_| Busy::begin()).collect::<Result<Vec<_>>>()?;
    let mut errors = Vec::new();
    for _ in 0..BOOTS {
        block_on(async {
            let machine = Machine::new(subject)?;
            let running = machine.start(Origin::Boot).await?;
            let guest = running.guest.as_ref().context("needs a guest")?;
            let devices = guest.run("sudo grep -A 8 'Clock Event Device: lapic' /proc/timer_list")?;
            let found = devices.lines().find_map(|line| line.trim().strip_prefix("mult:"));
            let found: f64 = found.with_context(|| format!("no rate in {devices:?}"))?.trim().parse()?;
            errors.push((found / RIGHT - 1.0).abs());
            let policy = scheduling(running.vm.pid())?;
            ensure!(
                policy.iter().all(|policy| policy == "0"),
                "threads' policies after the boot: {policy:?}"
            );
            running.vm.kill().await?;
            Ok(())
        })?;
    }
    errors.sort_by(f64::total_cmp);
    // The median: a host that is itself a guest may stand still at any moment.
    let median = errors.get(BOOTS / 2).copied().context("no boots")?;
    ensure!(median < 0.005, "the timer's rate is wrong by {errors:?}");
    Ok(())
}

/// Each thread's scheduling policy: field 41 of its `stat`, counted behind the name, which is the second.
fn scheduling(pid: i32) -> Result<Vec<String>> {
    let mut policies = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = std::fs::read_to_string(task?.path().join("stat"))?;
        let policy = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(38));
        policies.push(policy.context("a short stat")?.to_owned());
    }
    Ok(policies)
}

/// A process that always wants a core.
struct Busy(Child);

impl Busy {
    fn begin() -> Result<Self> {
        let mut command = Command::new("sh");
        // It ends by itself if this process is killed.
        let line = format!(
            "while kill -0 {} 2>/dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done",
            std::process::id()
        );
        Ok(Self(command.args(["-c", &line]).spawn()?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
