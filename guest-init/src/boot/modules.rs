//! Kernel modules of the initramfs, in the order that the image's builder
//! computed from their dependencies.

use std::{fs, path::Path};

use rustix::io::Errno;

use super::report;
use crate::error::{Context, Result};

/// A module that is missing or already built in is no fault: the disk and the
/// links decide whether what is needed is there.
pub fn load(order: &Path) {
    let text = fs::read_to_string(order).unwrap_or_default();
    for path in paths(&text) {
        report(insert(path));
    }
}

fn insert(path: &str) -> Result<()> {
    let Ok(file) = fs::File::open(path) else { return Ok(()) };
    match rustix::system::finit_module(&file, c"", 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error).during("load", path),
    }
}

fn paths(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_a_line() {
        let text = "/modules/a.ko\n\n  /modules/b.ko \n# why\n";
        assert_eq!(paths(text).collect::<Vec<_>>(), ["/modules/a.ko", "/modules/b.ko"]);
    }
}
