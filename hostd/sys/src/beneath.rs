//! Opens files beneath a directory without being led anywhere else.
//!
//! hostd is root, and a hypervisor owns the files of its machine: a name in the machine's
//! directory may be a symbolic link to a host's file, a FIFO that blocks an open for ever,
//! or a sparse file of a terabyte. Every open here starts at a descriptor, follows no
//! link, crosses no mount, never blocks, and looks at what was opened before it is used.

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, fchmod, fchown,
        fstat, fsync, mkdirat, openat2, renameat, renameat_with, statat, unlinkat,
    },
    io::Errno,
};
use std::{
    ffi::{CStr, CString, OsStr},
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

/// Entries that one removal deletes before it gives up: whoever fills the tree may still run.
const REMOVED_MAX: usize = 1 << 20;
/// Names that are read from a directory at once.
const BATCH: usize = 1024;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A directory, held by a descriptor: a name that is exchanged later changes nothing.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    /// Only for messages.
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Both,
    Append,
}

/// Who may own a file for it to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// In a directory that only this process's user can write to.
    Anyone,
    /// This process's own user: root, in the service.
    Own,
    /// This process's own user, or this one.
    OwnOr(u32),
}

/// What a file has to be to be used. It is always a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub owner: Owner,
    /// The most names that it may have: a second one may be a foreign file's.
    pub links: u64,
    /// In bytes.
    pub size: u64,
}

impl Expected {
    /// One name, any size.
    pub const fn of(owner: Owner) -> Self {
        Self { owner, links: 1, size: u64::MAX }
    }

    #[must_use]
    pub const fn at_most(self, size: u64) -> Self {
        Self { size, ..self }
    }

    #[must_use]
    pub const fn with_links(self, links: u64) -> Self {
        Self { links, ..self }
    }

    /// Refuses what is something else, and says what it is.
    pub fn check(&self, found: &Stat) -> io::Result<()> {
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind != FileType::RegularFile {
            return Err(refused(format!("it is {}", name_of(kind))));
        }
        let own = rustix::process::geteuid().as_raw();
        let may_own = match self.owner {
            Owner::Anyone => true,
            Owner::Own => found.st_uid == own,
            Owner::OwnOr(uid) => found.st_uid == own || found.st_uid == uid,
        };
        if !may_own {
            return Err(refused(format!("it belongs to uid {}", found.st_uid)));
        }
        let links = found.st_nlink;
        if links > self.links {
            return Err(refused(format!("it has {links} names")));
        }
        let size = u64::try_from(found.st_size).unwrap_or(u64::MAX);
        if size > self.size {
            return Err(refused(format!("it has {size} bytes, and {} are the most", self.size)));
        }
        Ok(())
    }
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "no regular file",
    }
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Only a name: unlinkat and renameat would follow a path.
fn single(name: &CStr) -> io::Result<()> {
    match name.to_bytes() {
        b"" | b"." | b".." => Err(refused("that is no name of a file".to_owned())),
        bytes if bytes.contains(&b'/') => Err(refused("that is a path, not a name".to_owned())),
        _ => Ok(()),
    }
}

fn named(name: impl AsRef<OsStr>) -> io::Result<CString> {
    let name = CString::new(name.as_ref().as_bytes())?;
    single(&name)?;
    Ok(name)
}

/// The kernel says ELOOP for a link that it was told not to follow.
fn told(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => refused("it is a symbolic link".to_owned()),
        Errno::NXIO => refused("it is a FIFO or a socket".to_owned()),
        other => other.into(),
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    /// A directory whose parents only root can write to.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(told)?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// For messages: what has this name now may be another one.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, path: self.path.clone() })
    }

    fn openat(&self, name: &CStr, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        openat2(&self.fd, name, flags, mode, RESOLVE).map_err(told)
    }

    /// A directory in this one.
    pub fn directory(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let (path, name) = (self.path.join(name.as_ref()), named(name)?);
        let fd = self.openat(&name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Self { fd, path })
    }

    /// A new directory in this one, with exactly this mode.
    pub fn make(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<Self> {
        let name = name.as_ref();
        mkdirat(&self.fd, named(name)?.as_c_str(), Mode::RWXU)?;
        let made = self.directory(name)?;
        made.set_mode(mode)?;
        Ok(made)
    }

    /// A file in this directory, if it is what is expected.
    pub fn file(&self, name: impl AsRef<OsStr>, access: Access, expected: Expected) -> io::Result<File> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
            Access::Both => OFlags::RDWR,
            Access::Append => OFlags::WRONLY | OFlags::APPEND,
        };
        let fd = self.openat(&named(name)?, flags, Mode::empty())?;
        expected.check(&fstat(&fd)?)?;
        Ok(fd.into())
    }

    /// All of a file, which has to be no larger than expected.
    pub fn read(&self, name: impl AsRef<OsStr>, expected: Expected) -> io::Result<Vec<u8>> {
        let file = self.file(name, Access::Read, expected)?;
        let mut bytes = Vec::new();
        // It may grow meanwhile.
        file.take(expected.size.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > expected.size {
            return Err(refused(format!("it has more than {} bytes", expected.size)));
        }
        Ok(bytes)
    }

    /// A new file that only this process's user may use, whatever had its name before.
    pub fn create(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let name = name.as_ref();
        self.remove(name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Ok(self.openat(&named(name)?, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// A new file without a name, for [`Directory::link`].
    pub fn nameless(&self) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, c".", flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Gives an open file a name in this directory.
    pub fn link(&self, file: &File, name: impl AsRef<OsStr>) -> io::Result<()> {
        use std::os::fd::AsRawFd as _;
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        let name = named(name)?;
        Ok(rustix::fs::linkat(rustix::fs::CWD, open, &self.fd, name.as_c_str(), AtFlags::SYMLINK_FOLLOW)?)
    }

    /// What has that name, not what it leads to. `None`: nothing has.
    pub fn look(&self, name: impl AsRef<OsStr>) -> io::Result<Option<Stat>> {
        match statat(&self.fd, named(name)?.as_c_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a regular file has that name.
    pub fn has(&self, name: impl AsRef<OsStr>) -> bool {
        let found = self.look(name).ok().flatten();
        found.is_some_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
    }

    /// Of the directory itself.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(fstat(&self.fd)?)
    }

    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fchmod(&self.fd, Mode::from_raw_mode(mode))?)
    }

    /// Leaves its owner and sets its group.
    pub fn give_group(&self, gid: u32) -> io::Result<()> {
        Ok(fchown(&self.fd, None, Some(Gid::from_raw(gid)))?)
    }

    pub fn give(&self, uid: u32, gid: u32) -> io::Result<()> {
        Ok(fchown(&self.fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
    }

    /// Replaces what has the new name.
    pub fn rename(&self, name: impl AsRef<OsStr>, to: &Self, new: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(renameat(&self.fd, named(name)?.as_c_str(), &to.fd, named(new)?.as_c_str())?)
    }

    /// Fails if something has the new name already.
    pub fn rename_new(&self, name: impl AsRef<OsStr>, to: &Self, new: impl AsRef<OsStr>) -> io::Result<()> {
        let (name, new) = (named(name)?, named(new)?);
        Ok(renameat_with(&self.fd, name.as_c_str(), &to.fd, new.as_c_str(), RenameFlags::NOREPLACE)?)
    }

    /// Removes a file. Fine if nothing has that name.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match unlinkat(&self.fd, named(name)?.as_c_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts the names in this directory on the disk below.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.fd)?)
    }

    /// Every name in this directory.
    pub fn names(&self) -> io::Result<Vec<CString>> {
        self.some_names(usize::MAX)
    }

    fn some_names(&self, most: usize) -> io::Result<Vec<CString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(entry.file_name().to_owned());
            }
            if names.len() >= most {
                break;
            }
        }
        Ok(names)
    }

    /// Removes what has that name, and if it is a directory all that is in it. Fine if
    /// nothing has.
    pub fn remove_all(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref();
        match unlinkat(&self.fd, named(name)?.as_c_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        self.directory(name)?.empty()?;
        Ok(unlinkat(&self.fd, named(name)?.as_c_str(), AtFlags::REMOVEDIR)?)
    }

    /// Removes everything in this directory. What is deeper is moved up first, so that a
    /// tree of any depth takes neither stack nor descriptors.
    fn empty(&self) -> io::Result<()> {
        let (mut left, mut moved) = (REMOVED_MAX, 0_u64);
        loop {
            let names = self.some_names(BATCH)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                left = left.checked_sub(1).ok_or_else(|| refused("it has too many files".to_owned()))?;
                if self.is_removed(&name)? {
                    continue;
                }
                let inner = Self { fd: self.below(&name)?, path: self.path.clone() };
                for child in inner.some_names(BATCH)? {
                    if !inner.is_removed(&child)? {
                        moved += 1;
                        let up = format!(".moved-up-{moved}");
                        renameat_with(&inner.fd, child.as_c_str(), &self.fd, up, RenameFlags::NOREPLACE)
                            .or_else(|error| if error == Errno::EXIST { Ok(()) } else { Err(error) })?;
                    }
                }
            }
        }
    }

    fn below(&self, name: &CStr) -> io::Result<OwnedFd> {
        self.openat(name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Removes a file or an empty directory. False: it is a directory with something in it.
    fn is_removed(&self, name: &CStr) -> io::Result<bool> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        match unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sets an open file's owner and its group, which have one number.
pub fn give(file: &File, uid: u32) -> io::Result<()> {
    Ok(fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?)
}

/// Puts the names in a directory on the disk below: a rename lasts only then.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests;
