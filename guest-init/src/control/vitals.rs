//! What the machine says of itself.

use std::{fs, time::Duration};

use berth_guest_protocol::Vitals;
use rustix::time::{ClockId, clock_gettime};

use crate::{guest::Guest, traffic};

pub fn take(guest: &Guest) -> Vitals {
    let census = guest.children.census();
    let (memory_used, memory_total) = memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let (disk_used, disk_total) = disk();
    Vitals {
        uptime_ms: uptime_ms(),
        commands: census.commands,
        terminals: census.terminals,
        busy_terminals: census.busy_terminals,
        cpu_ns: guest.freezer.cpu_ns(),
        memory_used,
        memory_total,
        disk_used,
        disk_total,
        moved: traffic::moved(),
    }
}

fn uptime_ms() -> u64 {
    let uptime = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default();
    u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX)
}

/// What could not be had without taking it from somebody is used.
fn memory(meminfo: &str) -> (u64, u64) {
    let field = |name: &str| {
        meminfo
            .lines()
            .find_map(|line| {
                line.strip_prefix(name)?.strip_prefix(':')?.split_whitespace().next()?.parse().ok()
            })
            .unwrap_or(0_u64)
            .saturating_mul(1024)
    };
    let total = field("MemTotal");
    (total.saturating_sub(field("MemAvailable")), total)
}

fn disk() -> (u64, u64) {
    rustix::fs::statvfs("/").map_or((0, 0), |stat| {
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        (bytes(stat.f_blocks.saturating_sub(stat.f_bfree)), bytes(stat.f_blocks))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     400 kB\n";
        assert_eq!(memory(text), (600 * 1024, 1000 * 1024));
        assert_eq!(memory(""), (0, 0));
    }
}
