//! Sleep, wake, fork and the rest, at three sizes of memory. What is compared
//! is ourselves with ourselves: none of it may cost more because a machine has
//! more memory, most of which the guest has written.
//!
//! A host drifts over minutes, and its drift would be what is compared if one
//! size were measured after the other. So a machine of every size is there at
//! once, and within each row they take turns.

use crate::{measure::median, report::Report};
use anyhow::{Context as _, Result};
use berth_tests::{Account, Output, Remote, Scratch, Service, Settings, eventually};
use std::{fs, time::Duration};

const SIZES: [&str; 3] = ["256M", "1G", "4G"];
/// How many forks at once. Ten of the largest have more memory than the host, of
/// which they share what they do not write.
const FORKS: u32 = 10;
const ROUNDS: usize = 10;
/// The same for many forks at once, which take long: every size begins once.
const ROUNDS_OF_MANY: usize = 3;
const LIMIT: Duration = Duration::from_secs(300);

/// Touches most of the memory that is free, page by page, and keeps it.
const FILL: &str = "import os, time
free = next(int(l.split()[1]) for l in open('/proc/meminfo') if l.startswith('MemAvailable')) * 1024
keep = bytearray(os.urandom(4096)) * (int(free * 0.7) // 4096)
open('/tmp/filled', 'w').write(str(len(keep)))
time.sleep(1e9)
";

/// Prints the largest gap between two looks at a clock, in ms, when asked to end. Of
/// the clock on the wall: what counts time since the boot stands while the machine does.
const TICKER: &str = "import signal, sys, time
worst, last = 0, time.time()
def end(*_):
    open('/tmp/worst', 'w').write('%.1f' % (worst * 1000)); sys.exit()
signal.signal(signal.SIGTERM, end)
open('/tmp/ticking', 'w').write('x')
while True:
    time.sleep(0.001)
    now = time.time()
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
    let service = Service::start(scratch, &settings())?;
    let account = service.account(scratch)?;
    let templates = service.data().join("pool/generations");
    eventually("a template for every size", LIMIT, || Ok(fs::read_dir(&templates)?.count() == SIZES.len()))?;
    let machines = SIZES.map(|size| Machine::new(&account, size));
    for (what, figures) in ROWS.into_iter().zip(rows(&machines)?) {
        report.rest(what, figures);
    }
    service.stop()
}

/// Room for all sizes and their forks at once, also for those of the turn
/// before: what `rm` has not given back yet must not refuse the next.
fn settings() -> Settings {
    let ready: Vec<String> = SIZES.map(str::to_owned).into();
    Settings::default()
        .set("service.log", "info")
        .set("idle.ready", ready)
        .set("host.memory", "64G")
        .set("host.pool_size", "48G")
        .set("quota.machines", 60)
        .set("quota.memory", "64G")
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

/// In the order of `ROWS`, each by size.
fn rows(machines: &[Machine; 3]) -> Result<[[f64; 3]; ROWS.len()]> {
    eprintln!("resting, the sizes by turns");
    let fresh = by_turns(machines, ROUNDS, Machine::fresh)?;
    for machine in machines {
        machine.make()?;
    }
    let running = by_turns(machines, ROUNDS, |machine, _| machine.command())?;
    let paused = by_turns(machines, ROUNDS, |machine, _| machine.paused())?;
    let warm = by_turns(machines, ROUNDS, |machine, _| machine.asleep(Cache::Warm))?;
    let cold = by_turns(machines, ROUNDS, |machine, _| machine.asleep(Cache::Dropped))?;
    let fork = by_turns(machines, ROUNDS, |machine, _| machine.fork())?;
    let forks = by_turns(machines, ROUNDS_OF_MANY, |machine, _| machine.forks())?;
    let pause = by_turns(machines, ROUNDS, |machine, _| machine.ticked())?;
    for machine in machines {
        machine.prepare_dirt()?;
    }
    let busy = by_turns(machines, ROUNDS, |machine, _| machine.ticked_dirtying())?;
    for machine in machines {
        machine.signal_dirt("KILL")?;
    }
    let snapshot = by_turns(machines, ROUNDS, Machine::snapshot)?;
    let restore = by_turns(machines, ROUNDS, Machine::restore)?;
    for machine in machines {
        machine.verb("rm", "")?;
    }
    Ok([running, paused, warm, cold, fresh, fork, forks, pause, busy, snapshot, restore])
}

/// The median of every machine, each measured once per round. Who begins
/// rotates, and in every other three rounds they go the other way about: what
/// one leaves for the background must not always fall to the same next.
fn by_turns(
    machines: &[Machine; 3],
    rounds: usize,
    one: impl Fn(&Machine, usize) -> Result<f64>,
) -> Result<[f64; 3]> {
    let mut all = machines.each_ref().map(|machine| (machine, Vec::new()));
    for round in 0..rounds {
        let mut turns = all.each_mut();
        turns.rotate_left(round % machines.len());
        if round / machines.len() % 2 == 1 {
            turns.reverse();
        }
        for (machine, figures) in turns {
            figures.push(one(machine, round).with_context(|| format!("{}, round {round}", machine.name))?);
        }
    }
    Ok(all.map(|(_, figures)| median(figures)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cache {
    Warm,
    Dropped,
}

/// The one of a size that is measured; there once it is made.
struct Machine {
    account: Account,
    size: &'static str,
    name: String,
    dev: Remote,
}

impl Machine {
    fn new(account: &Account, size: &'static str) -> Self {
        let name = format!("dev-{}", size.to_lowercase());
        let dev = account.at(&name);
        Self { account: account.clone(), size, name, dev }
    }

    /// Fills its memory. It rests only when told to: the others' turns are
    /// longer than the default idleness.
    fn make(&self) -> Result<()> {
        self.verb("new", &format!("--memory {}", self.size))?;
        self.verb("idle", "--pause never --sleep never")?;
        self.dev.write("fill.py", FILL)?;
        self.dev.write("ticker.py", TICKER)?;
        self.dev.write("dirty.py", DIRTY)?;
        self.dev.exec("nohup python3 fill.py > /dev/null 2>&1 &")?;
        self.appears("/tmp/filled")
    }

    /// `VERB NAME REST`, which must succeed.
    fn verb(&self, verb: &str, rest: &str) -> Result<Output> {
        self.account.verb(&format!("{verb} {} {rest}", self.name))?.ok()
    }

    fn appears(&self, path: &str) -> Result<()> {
        eventually(path, LIMIT, || Ok(self.dev.run(&format!("test -s {path}"))?.status == 0))
    }

    fn state(&self, wanted: &str) -> Result<()> {
        eventually(wanted, LIMIT, || {
            let info = self.verb("info", "--json")?.json()?;
            Ok(info.get("state").and_then(|state| state.as_str()) == Some(wanted))
        })
    }

    fn command(&self) -> Result<f64> {
        Ok(milliseconds(&self.dev.exec("true")?))
    }

    fn paused(&self) -> Result<f64> {
        self.verb("idle", "--pause 1s")?;
        self.state("paused")?;
        let figure = self.command();
        self.verb("idle", "--pause never")?;
        figure
    }

    fn asleep(&self, cache: Cache) -> Result<f64> {
        self.verb("sleep", "")?;
        if cache == Cache::Dropped {
            sync_all();
            fs::write("/proc/sys/vm/drop_caches", "3")?;
        }
        self.command()
    }

    /// Another machine of its size.
    fn fresh(&self, round: usize) -> Result<f64> {
        let name = format!("{}-new-{round}", self.name);
        let made = self.account.verb(&format!("new {name} --memory {}", self.size))?.ok()?;
        self.first_command(&made, &name)
    }

    fn fork(&self) -> Result<f64> {
        let kid = self.kid();
        let made = self.verb("fork", &kid)?;
        self.first_command(&made, &kid)
    }

    /// What it took to make a machine and have it run a command; then it goes.
    fn first_command(&self, made: &Output, name: &str) -> Result<f64> {
        let figure = milliseconds(made) + milliseconds(&self.account.at(name).exec("true")?);
        self.account.verb(&format!("rm {name}"))?.ok()?;
        Ok(figure)
    }

    fn forks(&self) -> Result<f64> {
        let kid = self.kid();
        let made = self.verb("fork", &format!("{kid} -n {FORKS}"))?;
        let kids: Vec<String> = (1..=FORKS).map(|n| format!("{kid}-{n}")).collect();
        self.account.verb(&format!("rm {}", kids.join(" ")))?.ok()?;
        Ok(milliseconds(&made))
    }

    fn kid(&self) -> String {
        format!("{}-kid", self.name)
    }

    /// What a 1 ms ticker in the source sees of a fork.
    fn ticked(&self) -> Result<f64> {
        let (dev, kid) = (&self.dev, self.kid());
        dev.exec(
            "rm -f /tmp/ticking /tmp/worst; nohup python3 ticker.py > /dev/null 2>&1 & echo $! > /tmp/pid",
        )?;
        self.appears("/tmp/ticking")?;
        self.verb("fork", &kid)?;
        dev.exec("kill $(cat /tmp/pid)")?;
        self.appears("/tmp/worst")?;
        self.account.verb(&format!("rm {kid}"))?.ok()?;
        dev.line("cat /tmp/worst")?.parse().context("the ticker's figure")
    }

    /// Starts what dirties, and has it stand still: it would take the host's
    /// cores from whoever has its turn.
    fn prepare_dirt(&self) -> Result<()> {
        self.dev.exec("nohup python3 dirty.py > /dev/null 2>&1 & echo $! > /tmp/dirt")?;
        self.appears("/tmp/dirtying")?;
        self.signal_dirt("STOP")
    }

    fn ticked_dirtying(&self) -> Result<f64> {
        self.signal_dirt("CONT")?;
        let figure = self.ticked();
        self.signal_dirt("STOP")?;
        figure
    }

    fn signal_dirt(&self, signal: &str) -> Result<()> {
        self.dev.exec(&format!("kill -{signal} $(cat /tmp/dirt)")).map(drop)
    }

    fn snapshot(&self, round: usize) -> Result<f64> {
        Ok(milliseconds(&self.verb("snapshot", &format!("s{round}"))?))
    }

    fn restore(&self, round: usize) -> Result<f64> {
        Ok(milliseconds(&self.verb("restore", &format!("s{round}"))?))
    }
}

fn milliseconds(output: &Output) -> f64 {
    output.elapsed.as_secs_f64() * 1000.0
}

/// Dirty pages cannot be dropped.
fn sync_all() {
    let _ = std::process::Command::new("sync").status();
}
