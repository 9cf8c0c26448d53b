//! Sleep, wake, fork and the rest, at three sizes of memory. What is compared
//! is ourselves with ourselves: none of it may cost more because a machine has
//! more memory, most of which the guest has written.

use crate::{measure::median, report::Report};
use anyhow::{Context as _, Result};
use berth_tests::{Account, Output, Remote, Scratch, Service, Settings, eventually};
use std::{fs, time::Duration};

const SIZES: [(&str, u32); 3] = [("256M", 256), ("1G", 1024), ("4G", 4096)];
const ROUNDS: usize = 10;
const LIMIT: Duration = Duration::from_secs(300);

/// Touches most of the memory that is free, page by page, and keeps it.
const FILL: &str = "import os, time
free = next(int(l.split()[1]) for l in open('/proc/meminfo') if l.startswith('MemAvailable')) * 1024
keep = bytearray(os.urandom(4096)) * (int(free * 0.7) // 4096)
open('/tmp/filled', 'w').write(str(len(keep)))
time.sleep(1e9)
";

/// Prints the largest gap between two looks at a clock, in ms, when asked to end.
const TICKER: &str = "import signal, sys, time
worst, last = 0, time.monotonic()
def end(*_):
    open('/tmp/worst', 'w').write('%.1f' % (worst * 1000)); sys.exit()
signal.signal(signal.SIGTERM, end)
open('/tmp/ticking', 'w').write('x')
while True:
    time.sleep(0.001)
    now = time.monotonic()
    worst, last = max(worst, now - last - 0.001), now
";

/// Writes to 32 MiB over and over, as fast as a program does that also works.
const DIRTY: &str = "import time
much = bytearray(32 << 20)
open('/tmp/dirtying', 'w').write('x')
n = 0
while True:
    n = (n + 1) % 256
    for at in range(0, len(much), 4096):
        much[at] = n
    time.sleep(0.005)
";

pub fn measure(scratch: &Scratch, report: &mut Report) -> Result<()> {
    let ready: Vec<String> = SIZES.iter().map(|(size, _)| (*size).to_owned()).collect();
    let settings = Settings::default().set("service.log", "info").set("idle.ready", ready);
    let service = Service::start(scratch, &settings)?;
    let account = service.account(scratch)?;
    let templates = service.data().join("pool/generations");
    eventually("a template for every size", LIMIT, || Ok(fs::read_dir(&templates)?.count() == SIZES.len()))?;
    let mut columns = Vec::new();
    for (size, _) in SIZES {
        eprintln!("resting at {size}");
        columns.push(Column::measure(&account, size)?);
    }
    for (row, what) in ROWS.iter().enumerate() {
        let figures: Vec<f64> = columns.iter().filter_map(|column| column.0.get(row).copied()).collect();
        if let [small, middle, large] = figures.as_slice() {
            report.rest(what, [*small, *middle, *large]);
        }
    }
    service.stop()
}

const ROWS: [&str; 11] = [
    "`ssh NAME@HOST true`, running",
    "`ssh NAME@HOST true`, paused",
    "`ssh NAME@HOST true`, asleep, page cache warm",
    "`ssh NAME@HOST true`, asleep, page cache dropped",
    "`new`, to the end of a first command",
    "`fork`, to the end of a first command in the child",
    "ten forks at once",
    "the pause that an idle source sees in a fork",
    "the same while it dirties 32 MiB over and over",
    "`snapshot`",
    "`restore`",
];

struct Column([f64; ROWS.len()]);

impl Column {
    fn measure(account: &Account, size: &str) -> Result<Self> {
        let fresh = repeat(|round| {
            let name = format!("new-{round}");
            let made = account.verb(&format!("new {name} --memory {size}"))?.ok()?;
            let figure = milliseconds(&made) + milliseconds(&account.at(&name).exec("true")?);
            account.verb(&format!("rm {name}"))?.ok()?;
            Ok(figure)
        })?;
        account.verb(&format!("new dev --memory {size}"))?.ok()?;
        let dev = account.at("dev");
        dev.write("fill.py", FILL)?;
        dev.write("ticker.py", TICKER)?;
        dev.write("dirty.py", DIRTY)?;
        dev.exec("nohup python3 fill.py > /dev/null 2>&1 &")?;
        eventually("a full memory", LIMIT, || Ok(dev.run("test -s /tmp/filled")?.status == 0))?;
        let running = repeat(|_| once(&dev))?;
        let paused = repeat(|_| {
            account.verb("idle dev --pause 1s --sleep never")?.ok()?;
            state(account, "paused")?;
            let figure = once(&dev);
            account.verb("idle dev --pause never")?.ok()?;
            figure
        })?;
        let warm = repeat(|_| {
            account.verb("sleep dev")?.ok()?;
            once(&dev)
        })?;
        let cold = repeat(|_| {
            account.verb("sleep dev")?.ok()?;
            sync_all();
            fs::write("/proc/sys/vm/drop_caches", "3")?;
            once(&dev)
        })?;
        let fork = repeat(|_| {
            let made = account.verb("fork dev kid")?.ok()?;
            let figure = milliseconds(&made) + milliseconds(&account.at("kid").exec("true")?);
            account.verb("rm kid")?.ok()?;
            Ok(figure)
        })?;
        // Ten of the largest do not fit; what is compared is per fork.
        let many = if size == "4G" { 2 } else { 10 };
        let forks =
            milliseconds(&account.verb(&format!("fork dev kid -n {many}"))?.ok()?) * 10.0 / f64::from(many);
        let kids: Vec<String> = (1..=many).map(|n| format!("kid-{n}")).collect();
        account.verb(&format!("rm {}", kids.join(" ")))?.ok()?;
        let pause = repeat(|_| ticked(account, &dev))?;
        dev.exec("nohup python3 dirty.py > /dev/null 2>&1 & echo $! > /tmp/dirt")?;
        eventually("something dirty", LIMIT, || Ok(dev.run("test -s /tmp/dirtying")?.status == 0))?;
        let busy = repeat(|_| ticked(account, &dev))?;
        dev.exec("kill $(cat /tmp/dirt)")?;
        let snapshot =
            repeat(|round| Ok(milliseconds(&account.verb(&format!("snapshot dev s{round}"))?.ok()?)))?;
        let restore =
            repeat(|round| Ok(milliseconds(&account.verb(&format!("restore dev s{round}"))?.ok()?)))?;
        account.verb("rm dev")?.ok()?;
        Ok(Self([running, paused, warm, cold, fresh, fork, forks, pause, busy, snapshot, restore]))
    }
}

/// What a 1 ms ticker in the source sees of a fork.
fn ticked(account: &Account, dev: &Remote) -> Result<f64> {
    dev.exec("rm -f /tmp/ticking /tmp/worst; nohup python3 ticker.py > /dev/null 2>&1 & echo $! > /tmp/pid")?;
    eventually("a ticker", LIMIT, || Ok(dev.run("test -s /tmp/ticking")?.status == 0))?;
    account.verb("fork dev kid")?.ok()?;
    dev.exec("kill $(cat /tmp/pid)")?;
    eventually("the ticker's end", LIMIT, || Ok(dev.run("test -s /tmp/worst")?.status == 0))?;
    account.verb("rm kid")?.ok()?;
    dev.line("cat /tmp/worst")?.parse().context("the ticker's figure")
}

fn repeat(mut one: impl FnMut(usize) -> Result<f64>) -> Result<f64> {
    Ok(median((0..ROUNDS).map(&mut one).collect::<Result<_>>()?))
}

fn once(remote: &Remote) -> Result<f64> {
    Ok(milliseconds(&remote.exec("true")?))
}

fn milliseconds(output: &Output) -> f64 {
    output.elapsed.as_secs_f64() * 1000.0
}

fn state(account: &Account, wanted: &str) -> Result<()> {
    eventually(wanted, LIMIT, || {
        let info = account.verb("info dev --json")?.ok()?.json()?;
        Ok(info.get("state").and_then(|state| state.as_str()) == Some(wanted))
    })
}

/// Dirty pages cannot be dropped.
fn sync_all() {
    let _ = std::process::Command::new("sync").status();
}
