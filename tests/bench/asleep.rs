//! What machines cost that do nothing: 1,000 that sleep, and one that is idle.

use crate::{
    measure::median,
    memory::{hostd, register},
    report::Report,
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Scratch, Service, Settings, eventually};
use berth_types::{GenerationId, State, UserId};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(300);
const MACHINES: u32 = 1000;

/// What an idle machine, awake, has the kernel write to the pool in a minute:
/// its RAM is a file.
pub fn idle(scratch: &Scratch, report: &mut Report) -> Result<()> {
    eprintln!("some minutes of an idle machine");
    let settings = Settings::default().set("service.log", "info").set("idle.ready", vec!["1G"]);
    let service = Service::start(scratch, &settings)?;
    let account = service.account(scratch)?;
    a_template(&service)?;
    account.verb("new dev --memory 1G")?.ok()?;
    account.verb("idle dev --pause never --sleep never")?.ok()?;
    let pool = service.data().join("pool");
    // What making it has dirtied is written first, and its guest is asked as
    // seldom as it ever is.
    minutes(5);
    let before = written(&pool)?;
    minutes(3);
    let each = (written(&pool)? - before) as f64 / 3.0 / f64::from(1 << 20);
    report.note(format!(
        "An idle machine of 1 GiB, awake: {each:.2} MiB a minute written to the pool's device."
    ));
    service.stop()
}

/// The measurement is what happens in this time.
fn minutes(count: u64) {
    std::thread::sleep(Duration::from_secs(60 * count));
}

/// Bytes written to the device below a filesystem.
fn written(filesystem: &Path) -> Result<u64> {
    let device = fs::metadata(filesystem)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"))?;
    let sectors: u64 = stat.split_whitespace().nth(6).context("no sectors written")?.parse()?;
    Ok(sectors * 512)
}

/// Machines that sleep in the image's booted state, as `new` leaves them
/// before their first wake, laid out as a restored pool would bring them.
pub fn thousand(scratch: &Scratch, report: &mut Report) -> Result<()> {
    eprintln!("{MACHINES} sleeping machines");
    let settings = Settings::default()
        .set("service.log", "info")
        .set("idle.ready", vec!["256M"])
        .set("machine.memory", "256M")
        .set("quota.disk", "100000G")
        .set("quota.machines", i64::from(MACHINES) + 10);
    let service = Service::start(scratch, &settings)?;
    let account = service.account(scratch)?;
    let template = a_template(&service)?;
    let user = account.verb("whoami --json")?.ok()?.json()?;
    let user: UserId = serde_json::from_value(user.get("user").cloned().context("no user")?)?;
    account.verb("new one")?.ok()?;
    let alone = Figures::measure(&service, &account, "one")?;
    // Records are rebuilt from directories where the store has none.
    account.verb("rm one")?.ok()?;

    service.end_hostd()?;
    let machines = service.data().join("pool/machines");
    for number in 0..MACHINES {
        register(&machines, &user, number, |machine| {
            machine.memory = berth_types::ByteSize::mib(256);
            machine.state = State::Asleep;
            machine.sleeps_in = Some(template.clone());
        })?;
    }
    let started = Instant::now();
    service.start_hostd()?;
    let restart = started.elapsed().as_secs_f64() * 1000.0;
    ensure!(service.status()?.machines == MACHINES, "not all machines were registered");
    let many = Figures::measure(&service, &account, "m-500")?;
    report.note(format!(
        "1,000 sleeping machines against one: hostd {:.1} MiB against {:.1}; `ls` {:.0} ms against {:.0}; \
         `ssh NAME@HOST true` on one that sleeps {:.0} ms against {:.0}; hostd starts on them in {restart:.0} ms.",
        many.memory, alone.memory, many.list, alone.list, many.wake, alone.wake,
    ));
    service.stop()
}

struct Figures {
    memory: f64,
    list: f64,
    wake: f64,
}

impl Figures {
    fn measure(service: &Service, account: &Account, name: &str) -> Result<Self> {
        let memory = hostd(service)?;
        let list = repeat(|| Ok(account.verb("ls")?.ok()?.elapsed))?;
        // The first wake is a fork of the image; what is measured is a machine's own sleep.
        account.at(name).exec("true")?;
        let wake = repeat(|| {
            account.verb(&format!("sleep {name}"))?.ok()?;
            Ok(account.at(name).exec("true")?.elapsed)
        })?;
        Ok(Self { memory, list, wake })
    }
}

fn repeat(mut one: impl FnMut() -> Result<Duration>) -> Result<f64> {
    let all: Vec<f64> = (0..10).map(|_| Ok(one()?.as_secs_f64() * 1000.0)).collect::<Result<_>>()?;
    Ok(median(all))
}

/// Waits for the image's booted generation and says which it is.
fn a_template(service: &Service) -> Result<GenerationId> {
    let generations = service.data().join("pool/generations");
    let mut found = None;
    eventually("a template", LIMIT, || {
        let names = fs::read_dir(&generations)?.flatten().map(|entry| entry.file_name());
        found = names.filter_map(|name| name.to_str()?.parse().ok()).next();
        Ok(found.is_some())
    })?;
    found.context("no template")
}
