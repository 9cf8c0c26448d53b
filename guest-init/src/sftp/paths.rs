//! Requests that work on paths.

use std::{
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, RenameFlags, lstat, renameat_with, stat},
    io::Errno,
};

use super::{
    Handled, Server,
    attributes::{self, Attributes},
    packet::{Reader, Status, kind},
};

impl Server {
    pub(super) fn stat(&mut self, id: u32, reader: &mut Reader<'_>, follow: bool) -> Handled {
        let path = reader.path()?;
        let found = if follow { stat(path)? } else { lstat(path)? };
        self.out.packet(kind::ATTRS, id, |writer| attributes::write(writer, &found));
        Ok(())
    }

    pub(super) fn setstat(&mut self, id: u32, reader: &mut Reader<'_>, follow: bool) -> Handled {
        let path = reader.path()?;
        Attributes::read(reader)?.apply_to_path(path, follow)?;
        self.done(id)
    }

    pub(super) fn remove(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        rustix::fs::unlink(reader.path()?)?;
        self.done(id)
    }

    pub(super) fn mkdir(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let path = reader.path()?;
        rustix::fs::mkdir(path, Attributes::read(reader)?.mode(0o777))?;
        self.done(id)
    }

    pub(super) fn rmdir(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        rustix::fs::rmdir(reader.path()?)?;
        self.done(id)
    }

    /// Version 3 never replaces; `posix-rename` does.
    pub(super) fn rename(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let (from, to) = (reader.path()?, reader.path()?);
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // A filesystem that cannot promise it.
            Err(Errno::INVAL | Errno::NOSYS) if lstat(to).is_err() => rustix::fs::rename(from, to)?,
            other => other?,
        }
        self.done(id)
    }

    pub(super) fn posix_rename(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let (from, to) = (reader.path()?, reader.path()?);
        rustix::fs::rename(from, to)?;
        self.done(id)
    }

    pub(super) fn hardlink(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let (from, to) = (reader.path()?, reader.path()?);
        rustix::fs::link(from, to)?;
        self.done(id)
    }

    /// The target first: OpenSSH's order, which every client has learnt.
    pub(super) fn symlink(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let (target, link) = (reader.path()?, reader.path()?);
        rustix::fs::symlink(target, link)?;
        self.done(id)
    }

    pub(super) fn readlink(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let target = rustix::fs::readlink(reader.path()?, Vec::new())?;
        self.give_name(id, target.as_bytes())
    }

    pub(super) fn realpath(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let path = resolve(reader.path()?)?;
        self.give_name(id, path.as_os_str().as_bytes())
    }

    /// `~` and `~name` as a shell would, then as `realpath`.
    pub(super) fn expand_path(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let path = reader.path()?;
        let expanded = match path.as_os_str().as_bytes().strip_prefix(b"~") {
            None => path.to_owned(),
            Some(rest) => {
                let slash = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
                let (name, rest) = rest.split_at_checked(slash).unwrap_or((rest, b""));
                let rest = rest.strip_prefix(b"/").unwrap_or(rest);
                home(name)?.join(Path::new(std::ffi::OsStr::from_bytes(rest)))
            }
        };
        let path = resolve(&expanded)?;
        self.give_name(id, path.as_os_str().as_bytes())
    }

    pub(super) fn home_directory(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let home = home(reader.string()?)?;
        self.give_name(id, home.as_os_str().as_bytes())
    }

    fn give_name(&mut self, id: u32, name: &[u8]) -> Handled {
        self.out.packet(kind::NAME, id, |writer| {
            writer.u32(1);
            writer.string(name);
            writer.string(name);
            // No attributes.
            writer.u32(0);
        });
        Ok(())
    }
}

/// Absolute and without links. Its last part need not exist: a client asks
/// before it creates.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(error) };
            if path.is_symlink() {
                return Err(error);
            }
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        other => other,
    }
}

/// The home of a user by name; the own one for none.
fn home(name: &[u8]) -> Result<PathBuf, Status> {
    if name.is_empty() {
        // Not std's, which would link the resolver of users into this program.
        return std::env::var_os("HOME").map(PathBuf::from).ok_or(Status::NoSuchFile);
    }
    crate::account::home_of(name).ok_or(Status::NoSuchFile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_a_path_need_not_exist() {
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
        assert_eq!(resolve(Path::new("/proc/../no-such-thing")).unwrap(), Path::new("/no-such-thing"));
        assert_eq!(resolve(Path::new("x-y-z")).unwrap(), std::env::current_dir().unwrap().join("x-y-z"));
        assert!(resolve(Path::new("/no-such-thing/below")).is_err());
        assert!(resolve(Path::new("/no-such-thing/..")).is_err());
    }
}
