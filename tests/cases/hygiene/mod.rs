//! What every process of a running service may and has, thread by thread, as the kernel
//! tells it. The tables are what the threat model promises of each program.

mod descriptors;

use crate::{
    cases,
    context::{Case, Context},
    faults::hypervisor,
};
use anyhow::{Context as _, Result, bail, ensure};
use berth_hypervisor::tasks::{self, Task};
use berth_tests::{Output, Service, Settings, eventually};
use nix::unistd::User;
use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

pub const CASES: &[Case] = cases![
    OwnService:
        every_thread_has_what_its_table_says;
];

const CAPABILITIES: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
const PATIENCE: Duration = Duration::from_secs(60);

const fn signal(number: u32) -> u64 {
    1 << (number - 1)
}
/// Where the service was started so that it outlives its terminal.
const HANGUP: u64 = signal(1);
/// As every Rust program.
const PIPE: u64 = signal(13);
const CHILD: u64 = signal(17);
/// With them a hypervisor stops its vCPUs.
const REAL_TIME: u64 = !0 << 33;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capable {
    /// Root: what it was started with.
    OfRoot,
    /// Root's bounding set only, which without new privileges is of no use.
    OnlyBounded,
    /// In none of the five sets.
    Never,
}

/// One program's table.
struct Table {
    /// Real, effective, saved and filesystem id alike, of user and group.
    user: u32,
    group: u32,
    /// Supplementary groups that it may be in.
    groups: Vec<u32>,
    capable: Capable,
    no_new_privileges: bool,
    /// A filter of system calls on every thread.
    filtered: bool,
    /// Signals that no thread may block.
    unblocked: u64,
    /// Signals that may be ignored.
    ignored: u64,
    /// Namespaces that are its own; all others are the host's.
    own: &'static [&'static str],
    /// At most this of a core; 1 is too little for one and is not handed to a program.
    core: u64,
    /// Kinds of descriptors that it may have; none: any.
    descriptors: &'static [&'static str],
    /// Nothing but the standard three goes to a program that it starts.
    closes: bool,
}

fn every_thread_has_what_its_table_says(context: &Context) -> Result<()> {
    let settings = Settings::default().set("machine.memory", "256M").set("idle.ready", Vec::<String>::new());
    context.with_service(&settings, |service| {
        let account = service.account(context.scratch())?;
        account.verb("new main --memory 256M")?.ok()?;
        let main = account.at("main");
        main.line("true")?;
        let hostd = service.hostd_pid()?;
        let bridge = *children(hostd, "berth-bridge")?.first().context("no bridge")?;
        let machine = hypervisor(service, &account, "main")?.as_raw();

        let gateway = User::from_name("nobody")?.context("no user nobody")?;
        let bridges: u32 = setting(service, "egress", "uid")?;
        let machines = fs::metadata(format!("/proc/{machine}"))?.uid();
        let device =
            Path::new("/dev/kvm").metadata().map(|found| found.gid()).ok().filter(|group| *group != 0);
        ensure!(![0, bridges, gateway.uid.as_raw()].contains(&machines), "the machine's user is {machines}");
        let mut wrong = Vec::new();
        for (name, pid, table) in [
            (
                "berth-hostd",
                hostd,
                Table {
                    user: 0,
                    group: 0,
                    groups: own_groups()?,
                    capable: Capable::OfRoot,
                    no_new_privileges: false,
                    filtered: false,
                    unblocked: !0,
                    ignored: PIPE | HANGUP,
                    own: &[],
                    core: 1,
                    descriptors: &[],
                    closes: true,
                },
            ),
            (
                "berth-gateway",
                service.gateway_pid()?,
                Table {
                    user: gateway.uid.as_raw(),
                    group: gateway.gid.as_raw(),
                    groups: vec![gateway.gid.as_raw()],
                    capable: Capable::OnlyBounded,
                    no_new_privileges: true,
                    filtered: false,
                    unblocked: !0,
                    ignored: PIPE | HANGUP,
                    own: &[],
                    core: 0,
                    descriptors: &["eventfd", "eventpoll", "log", "null", "socket"],
                    closes: true,
                },
            ),
            (
                "berth-bridge",
                bridge,
                Table {
                    user: bridges,
                    group: setting(service, "egress", "gid").unwrap_or(bridges),
                    groups: Vec::new(),
                    capable: Capable::Never,
                    no_new_privileges: true,
                    filtered: true,
                    unblocked: !0,
                    ignored: PIPE | HANGUP,
                    own: &[],
                    core: 0,
                    descriptors: &["eventfd", "eventpoll", "log", "null", "socket"],
                    closes: true,
                },
            ),
            (
                "a hypervisor",
                machine,
                Table {
                    user: machines,
                    group: machines,
                    groups: device.into_iter().collect(),
                    capable: Capable::Never,
                    no_new_privileges: true,
                    filtered: true,
                    // QEMU's workers block others themselves.
                    unblocked: REAL_TIME,
                    ignored: PIPE | CHILD,
                    own: &["ipc", "mnt", "net", "pid", "uts"],
                    core: 1,
                    descriptors: &[
                        "eventfd",
                        "eventpoll",
                        "image",
                        "kvm",
                        "machine",
                        "null",
                        "pipe",
                        "signalfd",
                        "socket",
                        "tun",
                    ],
                    closes: false,
                },
            ),
        ] {
            let found = differences(service, pid, &table).with_context(|| format!("looking at {name}"))?;
            wrong.extend(found.into_iter().map(|what| format!("{name}: {what}")));
        }
        wrong.extend(of_a_waiting_jail(service, hostd)?);
        ensure!(wrong.is_empty(), "not as their tables say:\n{}", wrong.join("\n"));

        let command = "cat /proc/self/status; ls /proc/self/fd | wc -l";
        in_a_guest(&main.run(command)?).context("a command")?;
        in_a_guest(&main.ssh(&["-tt"]).arg(command).finish()?).context("a command on a terminal")?;
        account.verb("rm main")?.ok().map(drop)
    })
}

/// It waits in its small root for a machine, and gives up the rest with the order: nothing
/// of a guest has reached it. One that is only being made is not there yet.
fn of_a_waiting_jail(service: &Service, hostd: i32) -> Result<Vec<String>> {
    let table = Table {
        user: 0,
        group: 0,
        groups: own_groups()?,
        capable: Capable::OfRoot,
        no_new_privileges: false,
        filtered: false,
        unblocked: !0,
        ignored: 0,
        own: &["ipc", "mnt", "pid", "uts"],
        core: 1,
        descriptors: &["log", "null", "socket"],
        closes: true,
    };
    let mut last = Vec::new();
    let waits = eventually("a jail to wait", PATIENCE, || {
        for pid in children(hostd, "berth-jail")? {
            match differences(service, pid, &table) {
                Ok(wrong) if wrong.is_empty() => return Ok(true),
                Ok(wrong) => last = wrong,
                // A launcher ends.
                Err(_) => {}
            }
        }
        Ok(false)
    });
    match waits {
        Ok(()) => Ok(Vec::new()),
        Err(error) if last.is_empty() => Err(error),
        Err(_) => Ok(last.into_iter().map(|what| format!("a jail that waits: {what}")).collect()),
    }
}

/// A command of the user's: no signal blocked or ignored, and no capability but those
/// that `sudo` brings.
fn in_a_guest(output: &Output) -> Result<()> {
    let text = output.text();
    let fields: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name, value.trim()))
        .collect();
    let field = |name: &str| fields.get(name).copied().with_context(|| format!("no {name} in {text}"));
    for empty in ["SigBlk", "SigIgn", "ShdPnd", "SigPnd", "CapInh", "CapPrm", "CapEff", "CapAmb", "Seccomp"] {
        ensure!(u64::from_str_radix(field(empty)?, 16)? == 0, "{empty} {}", field(empty)?);
    }
    let ids: Vec<&str> = field("Uid")?.split_whitespace().collect();
    ensure!(ids.len() == 4 && ids.iter().all(|id| *id == "1000"), "Uid {ids:?}");
    // Its three, and the one that reads the list.
    ensure!(text.lines().last().map(str::trim) == Some("4"), "descriptors: {text}");
    Ok(())
}

/// What each thread of a process has that its table does not say.
fn differences(service: &Service, pid: i32, table: &Table) -> Result<Vec<String>> {
    let own = tasks::of(i32::try_from(std::process::id())?)?;
    let own = own.first().context("this process has no thread")?;
    let mut wrong = Vec::new();
    for task in tasks::of(pid)? {
        let found = match in_thread(&task, own, table) {
            Ok(found) => found,
            Err(_) if !Path::new(&format!("/proc/{pid}/task/{}", task.tid)).exists() => continue,
            Err(error) => return Err(error),
        };
        wrong.extend(found.into_iter().map(|what| format!("thread {} ({}): {what}", task.tid, task.name)));
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
    let core = core.context("no limit of cores")?.split_whitespace().take(2).collect::<Vec<_>>();
    if !core.iter().all(|most| most.parse().is_ok_and(|most: u64| most <= table.core)) {
        wrong.push(format!("its cores may have {core:?} bytes"));
    }
    wrong.extend(descriptors::differences(service, pid, table)?);
    Ok(wrong)
}

fn in_thread(task: &Task, own: &Task, table: &Table) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mut expect = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    for (ids, id) in [("Uid", table.user), ("Gid", table.group)] {
        expect(task.has_only(ids, id), format!("{ids} {}, not {id}", task.field(ids)));
    }
    for group in task.field("Groups").split_whitespace() {
        let allowed = group.parse().is_ok_and(|group| table.groups.contains(&group));
        expect(allowed, format!("in group {group}"));
    }
    for set in CAPABILITIES {
        let empty = match table.capable {
            Capable::OfRoot => set == "CapInh" || set == "CapAmb",
            Capable::OnlyBounded => set != "CapBnd",
            Capable::Never => true,
        };
        expect(!empty || task.set(set) == 0, format!("{set} {}", task.field(set)));
    }
    let privileges = task.field("NoNewPrivs") == "1";
    expect(privileges || !table.no_new_privileges, "may gain privileges".to_owned());
    let filter = task.field("Seccomp") == "2";
    expect(filter || !table.filtered, "has no filter of system calls".to_owned());
    // QEMU keeps signals from its workers, for its first thread to take.
    let worker = table.filtered && table.unblocked != !0 && own_number(task)? != task.tid;
    let blocked = task.set("SigBlk") & table.unblocked;
    expect(worker || blocked == 0, format!("blocks {}", task.field("SigBlk")));
    let ignored = task.set("SigIgn") & !table.ignored;
    expect(ignored == 0, format!("ignores {}", task.field("SigIgn")));
    for name in NAMESPACES {
        // hostd asks after a machine's connections from the machine's network.
        if name == "net" && table.capable == Capable::OfRoot && task.name == "netns-sockets" {
            continue;
        }
        let is_hosts = task.namespace(name)? == own.namespace(name)?;
        let expected = !table.own.contains(&name);
        let whose = if is_hosts { "the host's" } else { "another" };
        expect(is_hosts == expected, format!("in {whose} {name} namespace"));
    }
    Ok(wrong)
}

/// Of the process that a thread is in.
fn own_number(task: &Task) -> Result<u32> {
    task.field("Tgid").parse().context("no Tgid")
}

/// Processes of this name that hostd is the parent of.
fn children(hostd: i32, name: &str) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let number = entry?.file_name();
        let Some(pid) = number.to_str().and_then(|number| number.parse().ok()) else { continue };
        // Others end whenever they like.
        let Ok(tasks) = tasks::of(pid) else { continue };
        let theirs = |task: &Task| task.name == name && task.field("PPid") == hostd.to_string();
        if tasks.first().is_some_and(theirs) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The groups of whoever starts the service.
fn own_groups() -> Result<Vec<u32>> {
    Ok(nix::unistd::getgroups()?.into_iter().map(nix::unistd::Gid::as_raw).collect())
}

fn setting<T: serde::de::DeserializeOwned>(service: &Service, section: &str, key: &str) -> Result<T> {
    let config: toml::Table = fs::read_to_string(service.config())?.parse()?;
    let value = config.get(section).and_then(|section| section.get(key));
    let Some(value) = value else { bail!("no {section}.{key}") };
    Ok(value.clone().try_into()?)
}
