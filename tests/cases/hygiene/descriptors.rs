//! What a process has open: each descriptor by its kind.

use super::{Table, setting};
use anyhow::{Context as _, Result};
use berth_tests::{Run, Service};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
};

/// As /proc/PID/fdinfo has it, in octal.
const CLOSE_ON_EXEC: u64 = 0o2_000_000;

/// What of it a table does not say.
pub fn differences(service: &Service, pid: i32, table: &Table) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let known = files(service)?;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        // One may be closed meanwhile.
        let (Ok(link), Ok(found)) = (fs::read_link(&path), fs::metadata(&path)) else { continue };
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0);
        let link = link.display().to_string();
        let kind = kind(&link, &found, &known);
        if !table.descriptors.is_empty() && !table.descriptors.contains(&kind) {
            wrong.push(format!("descriptor {number} is {kind} ({link})"));
        }
        if table.closes && number > 2 && !closes(pid, number)? {
            wrong.push(format!("descriptor {number} ({link}) goes to what it starts"));
        }
    }
    Ok(wrong)
}

/// The files that a service's programs may have open, and what each is.
fn files(service: &Service) -> Result<BTreeMap<(u64, u64), &'static str>> {
    let mut known = BTreeMap::new();
    let images: String = setting(service, "image", "directory")?;
    let places = [
        (service.directory().to_owned(), "log"),
        (service.data().join("pool/machines"), "machine"),
        (images.into(), "image"),
    ];
    for (place, kind) in places {
        let depth = if kind == "log" { "1" } else { "3" };
        let list = ["-maxdepth", depth, "-type", "f"];
        // What goes meanwhile is not listed: `find` then ends with 1.
        for path in Run::new("find").arg(place).args(list).finish()?.text().lines() {
            if let Ok(found) = fs::symlink_metadata(path) {
                known.insert((found.dev(), found.ino()), kind);
            }
        }
    }
    Ok(known)
}

fn kind(link: &str, found: &fs::Metadata, known: &BTreeMap<(u64, u64), &'static str>) -> &'static str {
    if let Some(kind) = known.get(&(found.dev(), found.ino())) {
        return kind;
    }
    let named = [
        ("/dev/null", "null"),
        ("/dev/net/tun", "tun"),
        ("/dev/kvm", "kvm"),
        ("anon_inode:kvm-", "kvm"),
        ("anon_inode:[eventfd]", "eventfd"),
        ("anon_inode:[eventpoll]", "eventpoll"),
        ("anon_inode:[signalfd]", "signalfd"),
        ("socket:", "socket"),
        ("pipe:", "pipe"),
    ];
    match named.iter().find(|(start, _)| link.starts_with(start)) {
        Some((_, kind)) => kind,
        None if found.is_dir() => "a directory",
        None if found.file_type().is_char_device() => "a device",
        None => "something else",
    }
}

fn closes(pid: i32, number: i32) -> Result<bool> {
    // One that is closed meanwhile goes nowhere.
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")) else { return Ok(true) };
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).context("no flags")?;
    Ok(u64::from_str_radix(flags.trim(), 8)? & CLOSE_ON_EXEC != 0)
}
