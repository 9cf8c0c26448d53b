//! No other user of the host reads what the service keeps: disks, memory, records, keys.

use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Run, Service, Settings};
use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

pub const CASES: &[Case] = cases![
    OwnService:
        no_other_user_reads_what_the_service_keeps;
];

/// Somebody with an account on the host.
const ANYBODY: u32 = 12_345;
/// Prints each path of its input that it can open.
const OPENS: &str = "while read -r path; do if true < \"$path\"; then echo \"$path\"; fi; done 2>/dev/null";

/// The service starts under umask 000 here, as every service of these cases does.
fn no_other_user_reads_what_the_service_keeps(context: &Context) -> Result<()> {
    let settings = Settings::default().set("machine.memory", "256M").set("idle.ready", Vec::<String>::new());
    context.with_service(&settings, |service| {
        let account = service.account(context.scratch())?;
        account.verb("new main")?.ok()?;
        account.verb("snapshot main kept")?.ok()?;
        account
            .client("ssh")
            .args(["berth", "secret set token --to example.org --placeholder"])
            .input("a value of some length\n")?
            .ok()?;
        nobody_reads(service).context("after a first start")?;

        // As an installation under another umask has left it.
        service.end_gateway()?;
        service.end_hostd()?;
        let open = Run::new("chmod").args(["-R", "a+rX"]).arg(service.data());
        open.ok()?;
        Run::new("chmod").arg("755").arg(service.directory().join("run/vm")).ok()?;
        ensure!(nobody_reads(service).is_err(), "this case would not notice a thing");
        service.start_hostd()?;
        service.start_gateway()?;
        nobody_reads(service).context("after a start on an open installation")?;
        let log = fs::read_to_string(service.directory().join("berth-hostd.log"))?;
        let told: Vec<&str> =
            log.lines().filter(|line| line.contains("other users of this host could")).collect();
        ensure!(told.iter().any(|line| line.contains("data 0755")), "it is not said: {told:?}");
        ensure!(account.at("main").line("echo up")? == "up", "its machine does not answer");
        account.verb("sleep main")?.ok()?;
        nobody_reads(service).context("with a machine asleep")?;
        ensure!(account.at("main").line("echo up")? == "up", "its machine does not wake");
        account.verb("rm main")?.ok().map(drop)
    })
}

/// As the gateway, the bridge, a hypervisor and anybody else, by processes of theirs.
fn nobody_reads(service: &Service) -> Result<()> {
    let paths = everything(&service.data())?;
    let hypervisor = hypervisors_user(&service.data().join("pool/machines"))?;
    let config: toml::Table = fs::read_to_string(service.config())?.parse()?;
    let bridge = config.get("egress").and_then(|egress| egress.get("uid")?.as_integer());
    let bridge = u32::try_from(bridge.context("no egress.uid")?)?;
    let gateway = config.get("gateway").and_then(|gateway| gateway.get("user")?.as_str());
    let gateway = nix::unistd::User::from_name(gateway.context("no gateway.user")?)?;
    let gateway = gateway.context("the gateway's user is missing")?.uid.as_raw();
    ensure!(paths.iter().any(|path| path.ends_with("store/db")), "{paths:?}");
    let running = service.directory().join("run/vm");
    for uid in [ANYBODY, gateway, bridge, hypervisor] {
        let theirs = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.uid() == uid);
        let others = paths.iter().filter(|path| !theirs(path)).chain([&running]);
        let list: String = others.map(|path| format!("{}\n", path.display())).collect();
        let ids = [format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()];
        let opened = Run::new("setpriv").args(ids).args(["sh", "-c", OPENS]).input(list)?.ok()?.text();
        ensure!(opened.is_empty(), "uid {uid} reads:\n{opened}");
    }
    Ok(())
}

/// The user of a machine's hypervisor, who has a group of the same number.
fn hypervisors_user(machines: &Path) -> Result<u32> {
    let machine = fs::read_dir(machines)?.next().context("no machine")??.path();
    let gid = machine.metadata()?.gid();
    ensure!(gid != 0, "{} is for root's group", machine.display());
    Ok(gid)
}

/// Every file and directory below this one, and itself. What goes meanwhile is left out.
fn everything(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![directory.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        if !path.symlink_metadata().is_ok_and(|path| path.is_dir()) {
            continue;
        }
        match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            entries => {
                let below = entries.with_context(|| path.display().to_string())?;
                found.extend(below.filter_map(Result::ok).map(|entry| entry.path()));
            }
        }
    }
    found.retain(|path| path.symlink_metadata().is_ok_and(|found| found.is_file() || found.is_dir()));
    Ok(found)
}
