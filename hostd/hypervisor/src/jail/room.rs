//! What a hypervisor's program needs to see of the host, found out once.

use super::wire::{Kind, Room, Shown};
use crate::Error;
use std::{
    collections::BTreeSet,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The dynamic linker's list of what it has to look at, and where.
const LINKER_CACHE: &str = "/etc/ld.so.cache";

impl Room {
    /// The program, what it is linked with, and what it reads and opens.
    pub(crate) fn of(program: &Path, data: &[PathBuf], devices: &[&str]) -> Result<Self, Error> {
        if !is_linked(program) {
            return Err(Error::Refused {
                operation: "looking at the hypervisor's program",
                message: format!("{} is a script: name the program itself", program.display()),
            });
        }
        let mut paths = BTreeSet::from_iter(libraries(program)?);
        paths.insert(program.to_owned());
        let show = |kind| move |path| Shown { path, kind };
        let data = data.iter().cloned().chain([PathBuf::from(LINKER_CACHE)]).filter(|path| path.exists());
        let shown = paths.into_iter().map(show(Kind::Code)).chain(data.map(show(Kind::Data)));
        let shown = shown.chain(devices.iter().map(PathBuf::from).map(show(Kind::Device)));
        Ok(Self { shown: shown.collect() })
    }

    /// A library that the program loads by itself.
    pub(crate) fn with_module(mut self, path: PathBuf) -> Self {
        self.shown.push(Shown { path, kind: Kind::Code });
        self
    }

    /// The directory of the library with this beginning of its name.
    pub(crate) fn directory_of(&self, library: &str) -> Option<PathBuf> {
        let found = self.shown.iter().find(|shown| {
            shown.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(library))
        });
        found?.path.parent()?.canonicalize().ok()
    }
}

/// Whether a program is one by itself, and no script.
fn is_linked(program: &Path) -> bool {
    let mut start = [0; 4];
    let read = File::open(program).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && &start == b"\x7fELF"
}

/// As `ldd` finds them: the program's dynamic linker lists them and ends before the
/// program begins. A static program has none, and says its version instead.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::Spawn { program: program.display().to_string(), source };
    let mut linker = Command::new(program);
    linker.arg("--version").env_clear().env("LD_TRACE_LOADED_OBJECTS", "1");
    let output = linker.stdin(Stdio::null()).stderr(Stdio::null()).output().map_err(failed)?;
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and the linker itself without an arrow.
fn parse(list: &str) -> Vec<PathBuf> {
    let lines = list.lines().filter(|line| line.starts_with('\t') && line.contains(" (0x"));
    let paths = lines.filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_where_the_linker_found_them() {
        let list = "\tlinux-vdso.so.1 (0x00007f57)\n\
                    \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f58)\n\
                    \tlibgone.so => not found\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f59)\n";
        let paths = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(parse(list), paths);
        assert!(parse("cloud-hypervisor v53.0\n").is_empty());
    }

    #[test]
    fn a_program_is_shown_with_what_it_is_linked_with() {
        let own = std::env::current_exe().unwrap();
        let room = Room::of(&own, &["/nonexistent".into()], &["/dev/null"]).unwrap();
        let directory = room.directory_of("libc.so").unwrap();
        assert!(directory.is_absolute() && directory.is_dir());
        let kinds = |kind| room.shown.iter().filter(|shown| shown.kind == kind).count();
        assert!(kinds(Kind::Code) >= 3, "{room:?}");
        assert_eq!((kinds(Kind::Data), kinds(Kind::Device)), (1, 1));
    }

    #[test]
    fn a_script_is_no_program() {
        let script = std::env::temp_dir().join(format!("berth-room-{}", std::process::id()));
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        let refused = Room::of(&script, &[], &[]);
        std::fs::remove_file(&script).unwrap();
        assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    }
}
