//! `berth doctor`: what is there, what is missing, what will be used.

use crate::{context::Context, image, output};
use berth_config::Accel;
use berth_types::{ByteSize, Code, Refusal};
use nix::unistd::User;
use serde::Serialize;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    /// Worth knowing; nothing has to be done.
    Note,
    Missing,
}

#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    detail: String,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { what, verdict, detail: detail.into() }
    }
}

/// What is run as a program, and the package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("mkfs.xfs", "xfsprogs"),
    ("mmdebstrap", "mmdebstrap"),
    ("mke2fs", "e2fsprogs"),
    ("lz4", "lz4"),
    ("xz", "xz-utils"),
];

pub fn run(context: &Context) -> Result<(), Refusal> {
    let mut findings = vec![configuration(context), hypervisor(context), acceleration(context)];
    findings.extend(PROGRAMS.iter().map(|(program, package)| tool(program, package)));
    findings.extend([pool(context), memory(), base_image(context), account(context)]);
    let missing = findings.iter().filter(|finding| finding.verdict == Verdict::Missing).count();
    if context.json {
        output::json(&findings)?;
    } else {
        let rows = findings.iter().map(|finding| {
            let verdict = match finding.verdict {
                Verdict::Good => "ok",
                Verdict::Note => "note",
                Verdict::Missing => "MISSING",
            };
            [verdict.to_owned(), finding.what.to_owned(), finding.detail.clone()]
        });
        output::table(["", "WHAT", "FOUND"], rows);
    }
    if missing == 0 {
        return Ok(());
    }
    let hint = "'make setup' installs programs, 'make image' makes the image";
    Err(Refusal::new(Code::Failed, format!("missing: {missing}"), hint))
}

fn configuration(context: &Context) -> Finding {
    let from = match &context.path {
        Some(path) => path.display().to_string(),
        None => "built in, for development".to_owned(),
    };
    Finding::new("configuration", Verdict::Good, from)
}

fn hypervisor(context: &Context) -> Finding {
    let binary = &context.config.hypervisor.qemu.binary;
    let version = find(binary).and_then(|path| {
        let output = Command::new(path).arg("--version").output().ok()?;
        String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
    });
    match version {
        Some(version) => Finding::new("hypervisor", Verdict::Good, version),
        None => {
            Finding::new("hypervisor", Verdict::Missing, format!("{} (qemu-system-x86)", binary.display()))
        }
    }
}

/// What hostd finds by trying is only guessed at here.
fn acceleration(context: &Context) -> Finding {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let hardware = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    let device = Path::new("/dev/kvm").exists();
    match (context.config.hypervisor.qemu.accel, device && hardware) {
        (Accel::Tcg, _) => Finding::new("acceleration", Verdict::Good, "none, as configured"),
        (Accel::Auto | Accel::Kvm, true) => Finding::new("acceleration", Verdict::Good, "KVM"),
        (Accel::Kvm, false) => {
            Finding::new("acceleration", Verdict::Missing, "KVM is configured but not usable")
        }
        (Accel::Auto, false) => {
            Finding::new("acceleration", Verdict::Note, "no usable KVM: machines are emulated")
        }
    }
}

fn tool(program: &'static str, package: &str) -> Finding {
    match find(Path::new(program)) {
        Some(path) => Finding::new(program, Verdict::Good, path.display().to_string()),
        None => Finding::new(program, Verdict::Missing, format!("install the package {package}")),
    }
}

fn find(program: &Path) -> Option<PathBuf> {
    if program.is_absolute() {
        return program.exists().then(|| program.to_owned());
    }
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.exists())
}

fn pool(context: &Context) -> Finding {
    let data = &context.config.service.data;
    let Some(existing) = data.ancestors().find(|path| path.exists()) else {
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
