//! The program and its version, before the first machine needs them.

use crate::{Error, files};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Releases that this driver was seen to work with. Another one may have other
/// names in its interface, and silence would cost a machine its memory.
pub const ACCEPTED: &[u32] = &[53];

/// The program's full path, for its process has another PATH than we.
pub(super) fn find(binary: &Path) -> Result<PathBuf, Error> {
    let missing = || Error::Refused {
        operation: "finding cloud-hypervisor",
        message: format!(
            "{} is not there: install a release of version {}, or name it in hypervisor.cloud_hypervisor.binary",
            binary.display(),
            versions()
        ),
    };
    files::find_program(binary).ok_or_else(missing)
}

/// What a program says of itself, be it accepted or not.
pub fn version(binary: &Path) -> Result<String, Error> {
    let binary = find(binary)?;
    let output = Command::new(&binary)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Spawn { program: binary.display().to_string(), source })?;
    parse(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| Error::Refused {
        operation: "asking the hypervisor's version",
        message: format!("{} is not a cloud-hypervisor", binary.display()),
    })
}

/// Its version, if it is one that this driver knows.
pub fn accepted(binary: &Path) -> Result<String, Error> {
    let found = version(binary)?;
    if major(&found).is_some_and(|major| ACCEPTED.contains(&major)) {
        return Ok(found);
    }
    Err(Error::Refused {
        operation: "asking the hypervisor's version",
        message: format!(
            "{} is version {found}: install a release of version {}",
            binary.display(),
            versions()
        ),
    })
}

fn versions() -> String {
    ACCEPTED.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ")
}

fn major(version: &str) -> Option<u32> {
    version.split(['.', '-']).next()?.parse().ok()
}

/// `cloud-hypervisor v53.0` → `53.0`; builds between releases say more, such as
/// `cloud-hypervisor v53.0-12-gabcdef`, and all of it counts.
fn parse(text: &str) -> Option<String> {
    let version = text.lines().next()?.strip_prefix("cloud-hypervisor v")?.trim();
    major(version).map(|_| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_whole() {
        assert_eq!(parse("cloud-hypervisor v53.0\n").unwrap(), "53.0");
        assert_eq!(parse("cloud-hypervisor v53.0-12-gabc-dirty\n").unwrap(), "53.0-12-gabc-dirty");
        assert_eq!(parse("cloud-hypervisor nightly\n"), None);
        assert_eq!(parse("QEMU emulator version 7.2.22\n"), None);
        assert_eq!((major("53.0"), major("53-1"), major("x")), (Some(53), Some(53), None));
    }

    #[test]
    fn what_is_missing_or_something_else_is_named() {
        let message = |result: Result<String, Error>| match result {
            Err(Error::Refused { message, .. }) => message,
            other => format!("{other:?}"),
        };
        assert!(message(accepted(Path::new("/no/such/vmm"))).starts_with("/no/such/vmm is not there"));
        assert!(message(accepted(Path::new("true"))).ends_with("is not a cloud-hypervisor"));
    }

    #[test]
    fn an_old_one_is_refused_with_what_to_install() {
        let directory = std::env::temp_dir().join(format!("berth-old-vmm-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let old = directory.join("cloud-hypervisor");
        std::fs::write(&old, "#!/bin/sh\necho cloud-hypervisor v38.0.0\n").unwrap();
        std::fs::set_permissions(&old, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let error = accepted(&old).unwrap_err().to_string();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(error.contains("38.0.0") && error.contains("version 53"), "{error}");
    }
}
