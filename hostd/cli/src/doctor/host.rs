//! What a host needs beside a hypervisor.

use super::{Finding, Verdict, find};
use crate::{context::Context, image};
use berth_types::ByteSize;
use nix::unistd::User;
use rustix::fs::{Mode, OFlags};
use std::{fs, path::Path};

/// What is run as a program, and the package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("mkfs.xfs", "xfsprogs"),
    ("mmdebstrap", "mmdebstrap"),
    ("mke2fs", "e2fsprogs"),
    ("lz4", "lz4"),
    ("xz", "xz-utils"),
];

pub fn findings(context: &Context) -> Vec<Finding> {
    let mut findings = vec![kernel(), pool(context), reflinks(context), nftables()];
    findings.extend(PROGRAMS.iter().map(|(program, package)| tool(program, package)));
    findings.extend([memory(), base_image(context), account(context)]);
    findings
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    Finding::new("kernel", Verdict::Good, format!("Linux {release}"))
}

fn tool(program: &'static str, package: &str) -> Finding {
    match find(Path::new(program)) {
        Some(path) => Finding::new(program, Verdict::Good, path.display().to_string()),
        None => Finding::new(program, Verdict::Missing, format!("install the package {package}")),
    }
}

/// The data directory, or what there is of it.
fn existing(context: &Context) -> Option<&Path> {
    context.config.service.data.ancestors().find(|path| path.exists())
}

fn pool(context: &Context) -> Finding {
    let data = &context.config.service.data;
    let Some(existing) = existing(context) else {
        return Finding::new("data", Verdict::Missing, data.display().to_string());
    };
    match rustix::fs::statvfs(existing) {
        Ok(found) => {
            let free = ByteSize(found.f_bavail.saturating_mul(found.f_frsize));
            Finding::new("data", Verdict::Good, format!("{}, {free} free", data.display()))
        }
        Err(error) => Finding::new("data", Verdict::Missing, format!("{} ({error})", data.display())),
    }
}

/// Asks the filesystem by doing it, with files that have no names.
fn reflinks(context: &Context) -> Finding {
    const WHAT: &str = "reflinks";
    let data = &context.config.service.data;
    let pool = data.join("pool.xfs");
    if pool.exists() {
        return Finding::new(WHAT, Verdict::Good, format!("in a pool of our own, {}", pool.display()));
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = |directory: &Path| rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR);
    let cloned = existing(context).is_some_and(|directory| {
        let (Ok(from), Ok(to)) = (file(directory), file(directory)) else { return false };
        rustix::io::write(&from, &[1; 4096]).is_ok() && rustix::fs::ioctl_ficlone(&to, &from).is_ok()
    });
    if cloned {
        return Finding::new(WHAT, Verdict::Good, format!("{} has them", data.display()));
    }
    let size = context.config.host.pool_size;
    let detail = format!(
        "not here: an XFS of {size} is made in a file; an XFS or btrfs of its own is a little faster"
    );
    Finding::new(WHAT, Verdict::Note, detail)
}

/// The firewall that keeps machines from what they may not reach.
fn nftables() -> Finding {
    let kernel = Path::new("/proc/net/netfilter").exists();
    match (kernel, find(Path::new("nft"))) {
        (true, Some(path)) => Finding::new("nft", Verdict::Good, path.display().to_string()),
        (true, None) => {
            Finding::new("nft", Verdict::Note, "install the package nftables to look at machines' rules")
        }
        (false, _) => Finding::new("nft", Verdict::Note, "this kernel has no netfilter: load nf_tables"),
    }
}

fn memory() -> Finding {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
    };
    match (value("MemTotal"), value("MemAvailable")) {
        (Some(total), Some(available)) => {
            let (total, available) = (ByteSize(total << 10), ByteSize(available << 10));
            Finding::new("memory", Verdict::Good, format!("{total}, {available} available"))
        }
        _ => Finding::new("memory", Verdict::Note, "unknown"),
    }
}

fn base_image(context: &Context) -> Finding {
    let name = &context.config.machine.image;
    match image::is_current(&context.config.image.directory, name) {
        Ok(true) => Finding::new("image", Verdict::Good, name),
        Ok(false) => {
            Finding::new("image", Verdict::Note, format!("{name}, out of date: 'berth image build'"))
        }
        Err(refusal) => Finding::new("image", Verdict::Missing, refusal.to_string()),
    }
}

fn account(context: &Context) -> Finding {
    let name = &context.config.gateway.user;
    match User::from_name(name) {
        Ok(Some(user)) => Finding::new("gateway's user", Verdict::Good, format!("{name} ({})", user.uid)),
        _ => Finding::new("gateway's user", Verdict::Note, format!("{name} is made by the first start")),
    }
}
