//! Keeps the service's files from every other user of the host.

use crate::beneath::Directory;
use rustix::fs::{FileType, Mode, OFlags};
use std::{
    fmt,
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Passed through by hypervisors, listed by root alone.
pub const PASSABLE: u32 = 0o711;
pub const CLOSED: u32 = 0o700;

/// What others could use before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tightened {
    pub path: PathBuf,
    pub before: u32,
}

impl fmt::Display for Tightened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:04o}", self.path.display(), self.before)
    }
}

/// Makes a directory and those above it that are missing, each with exactly this mode.
/// One that is there stays as it is.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty())
        && !parent.exists()
    {
        make_directory(parent, mode)?;
    }
    match std::fs::DirBuilder::new().mode(CLOSED).create(path) {
        // The mode is set afterwards, for a umask takes from what a directory is made with.
        Ok(()) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes from a directory what is beyond `mode`. What is tighter stays so.
pub fn tighten_directory(path: &Path, mode: u32) -> io::Result<Option<Tightened>> {
    let directory = Directory::open(path)?;
    let before = directory.stat()?.st_mode & 0o7777;
    if before & !mode & 0o777 == 0 {
        return Ok(None);
    }
    directory.set_mode(before & mode)?;
    Ok(Some(Tightened { path: path.to_owned(), before }))
}

/// Takes the group's and others' rights from everything in a directory, but for the
/// `spared` directories and those on the way to them. A directory of another user is
/// closed and not gone into.
pub fn tighten_all(root: &Path, spared: &[&Path]) -> io::Result<Vec<Tightened>> {
    let mut found = Vec::new();
    let mut left = vec![Directory::open(root)?];
    while let Some(directory) = left.pop() {
        for name in directory.names()? {
            let name = std::ffi::OsStr::new(name.to_str().unwrap_or_default());
            let path = directory.path().join(name);
            if name.is_empty() || spared.iter().any(|spared| spared.starts_with(&path)) {
                continue;
            }
            let Some(entry) = directory.look(name)? else { continue };
            let before = entry.st_mode & 0o7777;
            let own = entry.st_uid == rustix::process::geteuid().as_raw();
            match FileType::from_raw_mode(entry.st_mode) {
                FileType::Directory => {
                    // A mount is not ours to change.
                    let Ok(inner) = directory.directory(name) else { continue };
                    if before & 0o077 != 0 {
                        inner.set_mode(before & CLOSED)?;
                        found.push(Tightened { path, before });
                    }
                    if own {
                        left.push(inner);
                    }
                }
                FileType::RegularFile if before & 0o077 != 0 && tighten_file(&directory, name)? => {
                    found.push(Tightened { path, before });
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Through a descriptor: the name may be another file's by now. False: it was left alone.
fn tighten_file(directory: &Directory, name: &std::ffi::OsStr) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let now = rustix::fs::fstat(&file)?;
    // Of a file with two names the other may be anywhere.
    let own = FileType::from_raw_mode(now.st_mode) == FileType::RegularFile && now.st_nlink == 1;
    if own {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(now.st_mode & CLOSED))?;
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::fs;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn everything_but_what_is_spared_is_closed() {
        let scratch = Scratch::new();
        let root = scratch.path();
        for directory in ["store", "store/blobs", "pool", "deep/images"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for file in ["pool.xfs", "store/blobs/1", "pool/disk", "deep/images/vmlinux", "closed"] {
            fs::write(root.join(file), "").unwrap();
            fs::set_permissions(root.join(file), fs::Permissions::from_mode(0o666)).unwrap();
        }
        fs::set_permissions(root.join("closed"), fs::Permissions::from_mode(0o400)).unwrap();
        fs::set_permissions(root.join("store"), fs::Permissions::from_mode(0o777)).unwrap();
        let (pool, images) = (root.join("pool"), root.join("deep/images"));
        let found = tighten_all(root, &[&pool, &images]).unwrap();
        for (name, wanted) in [
            ("pool.xfs", 0o600),
            ("store", 0o700),
            ("store/blobs", 0o700),
            ("store/blobs/1", 0o600),
            ("closed", 0o400),
            ("pool/disk", 0o666),
            ("deep/images/vmlinux", 0o666),
        ] {
            assert_eq!(mode(&root.join(name)), wanted, "{name}");
        }
        assert!(found.contains(&Tightened { path: root.join("pool.xfs"), before: 0o666 }), "{found:?}");
        assert_eq!(tighten_all(root, &[&pool, &images]).unwrap(), []);
    }

    #[test]
    fn what_a_link_leads_to_and_what_has_another_name_stay_as_they_are() {
        let scratch = Scratch::new();
        let (root, outside) = (scratch.path().join("data"), scratch.path().join("outside"));
        fs::create_dir(&root).unwrap();
        fs::write(&outside, "").unwrap();
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        fs::hard_link(&outside, root.join("name")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("fifo"), Mode::from_raw_mode(0o666)).unwrap();
        assert_eq!(tighten_all(&root, &[]).unwrap(), []);
        assert_eq!(mode(&outside), 0o644);
    }

    #[test]
    fn a_directory_is_as_tight_as_asked_whatever_the_umask() {
        let scratch = Scratch::new();
        let path = scratch.path().join("a/b");
        make_directory(&path, PASSABLE).unwrap();
        assert_eq!((mode(&path), mode(&scratch.path().join("a"))), (PASSABLE, PASSABLE));
        assert_eq!(tighten_directory(&path, PASSABLE).unwrap(), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let tightened = tighten_directory(&path, PASSABLE).unwrap().unwrap();
        assert_eq!((tightened.before, mode(&path)), (0o755, 0o711));
        // An operator's own choice.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        make_directory(&path, PASSABLE).unwrap();
        assert_eq!((tighten_directory(&path, PASSABLE).unwrap(), mode(&path)), (None, 0o700));
    }
}
