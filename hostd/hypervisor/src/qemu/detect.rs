//! What this host offers: the program, its version, its firmware, an
//! accelerator, and the speed of the clock that guests see.

use super::{Accel, LAYOUT, Settings};
use crate::{Error, jail::wire::Room, kvm};
use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const TCG_MODULE: &str = "accel-tcg-x86_64.so";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    Kvm,
    Tcg,
}

/// What a program says of itself.
pub fn version(binary: &Path) -> Result<String, Error> {
    let output = ask(binary, &["--version"])?;
    parse_version(&output).ok_or_else(|| Error::Refused {
        operation: "asking the hypervisor's version",
        message: format!("{} is not a QEMU", binary.display()),
    })
}

/// A version as manifests name it: device state is tied to all of this. A guest that
/// has seen one CPU cannot go on with another.
pub(super) fn whole_version(version: &str, accelerator: Accelerator, settings: &Settings) -> String {
    let cpu = match accelerator {
        // As it was before there was another.
        Accelerator::Tcg => "",
        Accelerator::Kvm => "-kvm",
    };
    let features = settings.cpu_features.trim();
    let separator = if features.is_empty() { "" } else { "," };
    format!("{version}+{LAYOUT}{cpu}{separator}{features}")
}

/// Looks for the firmware before the first machine does, where the error
/// reaches an operator and not a user.
pub(super) fn firmware(binary: &Path, name: &Path) -> Result<PathBuf, Error> {
    let found = if name.components().count() > 1 {
        name.exists().then(|| name.to_owned())
    } else {
        // QEMU prints the directories that it searches, one a line.
        ask(binary, &["-L", "help"])?
            .lines()
            .map(|directory| Path::new(directory).join(name))
            .find(|path| path.exists())
    };
    found.and_then(|found| found.canonicalize().ok()).ok_or_else(|| Error::Refused {
        operation: "finding the firmware",
        message: format!("{} is not there: install the package that has it", name.display()),
    })
}

/// What a process of it sees of the host. Its firmware's directory has the small programs
/// that load a kernel, too.
pub(super) fn room(binary: &Path, firmware: &Path, accelerator: Accelerator) -> Result<Room, Error> {
    let devices: &[_] = match accelerator {
        Accelerator::Kvm => &["/dev/null", "/dev/urandom", "/dev/kvm"],
        Accelerator::Tcg => &["/dev/null", "/dev/urandom"],
    };
    let data: Vec<_> = firmware.parent().map(Path::to_owned).into_iter().collect();
    let room = Room::of(binary, &data, devices)?;
    // Where it is not built in, emulation is a module.
    let module = room.directory_of("libc.so").map(|directory| directory.join("qemu").join(TCG_MODULE));
    Ok(match module.filter(|module| module.exists()) {
        Some(module) => room.with_module(module),
        None => room,
    })
}

/// The accelerator, and the group that its device takes.
pub(super) fn accelerator(wanted: Accel) -> Result<(Accelerator, Option<u32>), Error> {
    let unusable = |error: kvm::Unusable| Error::Refused {
        operation: "finding an accelerator",
        message: error.to_string(),
    };
    match wanted {
        Accel::Tcg => Ok((Accelerator::Tcg, None)),
        // Asked for by name, it need not run ordinary kernels: the operator may have another.
        Accel::Kvm => Ok((Accelerator::Kvm, kvm::access().map_err(unusable)?.group)),
        Accel::Auto => Ok(match kvm::prove() {
            Ok(access) => (Accelerator::Kvm, access.group),
            Err(_) => (Accelerator::Tcg, None),
        }),
    }
}

/// The rate of the time-stamp counter, which a guest under TCG reads as it is.
pub(super) fn tsc_khz() -> Result<u32, Error> {
    let text = std::fs::read_to_string("/proc/cpuinfo")
        .map_err(|source| Error::Io { operation: "reading /proc/cpuinfo", source })?;
    parse_tsc_khz(&text).ok_or_else(|| Error::Io {
        operation: "finding the CPU's clock rate in /proc/cpuinfo",
        source: io::ErrorKind::InvalidData.into(),
    })
}

fn ask(binary: &Path, arguments: &[&str]) -> Result<String, Error> {
    let output = Command::new(binary)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Spawn { program: binary.display().to_string(), source })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)` → `7.2.22`.
fn parse_version(text: &str) -> Option<String> {
    let (_, rest) = text.lines().next()?.split_once("emulator version ")?;
    Some(rest.split_whitespace().next()?.to_owned())
}

fn cpuinfo<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// `bogomips` is twice the calibrated counter's MHz and never changes; `cpu MHz`
/// follows the CPU's present frequency and is only the second choice.
fn parse_tsc_khz(text: &str) -> Option<u32> {
    let khz = |key, per_unit: f64| {
        let khz = cpuinfo(text, key)?.parse::<f64>().ok()? * per_unit;
        (100_000.0..10_000_000.0).contains(&khz).then_some(khz as u32)
    };
    khz("bogomips", 500.0).or_else(|| khz("cpu MHz", 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright …";
        assert_eq!(parse_version(debian).unwrap(), "7.2.22");
        assert_eq!(parse_version("QEMU emulator version 10.1.0\n").unwrap(), "10.1.0");
        assert_eq!(parse_version("ls (GNU coreutils) 9.1"), None);
        assert_eq!(parse_version(""), None);
    }

    #[test]
    fn state_is_tied_to_the_cpu_that_its_guest_has_seen() {
        let plain = Settings::default();
        let changed = Settings { cpu_features: " -pmu ".to_owned(), ..Settings::default() };
        assert_eq!(whole_version("7.2.22", Accelerator::Tcg, &plain), "7.2.22+2");
        assert_eq!(whole_version("7.2.22", Accelerator::Kvm, &plain), "7.2.22+2-kvm");
        assert_eq!(whole_version("7.2.22", Accelerator::Kvm, &changed), "7.2.22+2-kvm,-pmu");
    }

    #[test]
    fn the_counter_rate_is_not_the_cpus_present_frequency() {
        let text = "processor\t: 0\ncpu MHz\t\t: 800.000\nflags\t\t: fpu tsc\nbogomips\t: 4890.85\n";
        assert_eq!(parse_tsc_khz(text), Some(2_445_425));
        assert_eq!(parse_tsc_khz("cpu MHz : 2445.426"), Some(2_445_426));
        assert_eq!(parse_tsc_khz("bogomips : 48.00"), None);
        assert_eq!(parse_tsc_khz(""), None);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = version(Path::new("no-such-qemu")).unwrap_err();
        assert!(matches!(error, Error::Spawn { ref program, .. } if program == "no-such-qemu"), "{error}");
        assert!(matches!(version(Path::new("/bin/true")), Err(Error::Refused { .. })));
    }
}
