//! File attributes: on the wire, and as set on a file.

use std::{os::fd::BorrowedFd, path::Path};

use rustix::{
    fs::{
        AtFlags, CWD, Gid, Mode, Stat, Timespec, Timestamps, Uid, chmodat, chownat, fchmod, fchown,
        ftruncate, futimens, utimensat,
    },
    io::Errno,
};

use super::packet::{Malformed, Reader, Writer};

const SIZE: u32 = 1;
const UIDGID: u32 = 2;
const PERMISSIONS: u32 = 4;
const ACMODTIME: u32 = 8;
const EXTENDED: u32 = 0x8000_0000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub size: Option<u64>,
    pub owner: Option<(u32, u32)>,
    pub permissions: Option<u32>,
    /// Last access and last change, in seconds.
    pub times: Option<(u32, u32)>,
}

impl Attributes {
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let flags = reader.u32()?;
        let has = |flag| flags & flag != 0;
        let mut attributes = Self::default();
        if has(SIZE) {
            attributes.size = Some(reader.u64()?);
        }
        if has(UIDGID) {
            attributes.owner = Some((reader.u32()?, reader.u32()?));
        }
        if has(PERMISSIONS) {
            attributes.permissions = Some(reader.u32()?);
        }
        if has(ACMODTIME) {
            attributes.times = Some((reader.u32()?, reader.u32()?));
        }
        if has(EXTENDED) {
            for _ in 0..reader.u32()? {
                reader.string()?;
                reader.string()?;
            }
        }
        Ok(attributes)
    }

    pub fn mode(&self, default: u32) -> Mode {
        Mode::from_raw_mode(self.permissions.map_or(default, |mode| mode & 0o7777))
    }

    fn timestamps(&self) -> Option<Timestamps> {
        let at = |seconds: u32| Timespec { tv_sec: seconds.into(), tv_nsec: 0 };
        self.times
            .map(|(access, change)| Timestamps { last_access: at(access), last_modification: at(change) })
    }

    fn ids(&self) -> Option<(Uid, Gid)> {
        self.owner.map(|(uid, gid)| (Uid::from_raw(uid), Gid::from_raw(gid)))
    }

    /// In OpenSSH's order: a size, then rights that may forbid one, then times
    /// that both would change.
    pub fn apply_to_file(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        if let Some(size) = self.size {
            ftruncate(fd, size)?;
        }
        if self.permissions.is_some() {
            fchmod(fd, self.mode(0))?;
        }
        if let Some(times) = self.timestamps() {
            futimens(fd, &times)?;
        }
        if let Some((uid, gid)) = self.ids() {
            fchown(fd, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    pub fn apply_to_path(&self, path: &Path, follow: bool) -> Result<(), Errno> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        if let Some(size) = self.size {
            if !follow {
                return Err(Errno::INVAL);
            }
            truncate(path, size)?;
        }
        if self.permissions.is_some() {
            chmodat(CWD, path, self.mode(0), flags)?;
        }
        if let Some(times) = self.timestamps() {
            utimensat(CWD, path, &times, flags)?;
        }
        if let Some((uid, gid)) = self.ids() {
            chownat(CWD, path, Some(uid), Some(gid), flags)?;
        }
        Ok(())
    }
}

fn truncate(path: &Path, size: u64) -> Result<(), Errno> {
    use rustix::fs::OFlags;
    // Not blocking: a pipe without a reader must not hold up the session.
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    ftruncate(rustix::fs::open(path, flags, Mode::empty())?, size)
}

pub fn write(writer: &mut Writer, stat: &Stat) {
    // The protocol's seconds end in 2106 and begin in 1970.
    let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
    writer.u32(SIZE | UIDGID | PERMISSIONS | ACMODTIME);
    writer.u64(u64::try_from(stat.st_size).unwrap_or(0));
    writer.u32(stat.st_uid);
    writer.u32(stat.st_gid);
    writer.u32(stat.st_mode);
    writer.u32(seconds(stat.st_atime));
    writer.u32(seconds(stat.st_mtime));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_flags_announce() {
        let bytes = [
            &0x8000_000d_u32.to_be_bytes()[..],
            &5_u64.to_be_bytes(),
            &0o644_u32.to_be_bytes(),
            &1_u32.to_be_bytes(),
            &2_u32.to_be_bytes(),
            &1_u32.to_be_bytes(),
            &[0, 0, 0, 1, b'k', 0, 0, 0, 0],
        ]
        .concat();
        let read = Attributes::read(&mut Reader::new(&bytes)).unwrap();
        let expected =
            Attributes { size: Some(5), owner: None, permissions: Some(0o644), times: Some((1, 2)) };
        assert_eq!(read, expected);
        for end in 0..bytes.len() {
            assert_eq!(Attributes::read(&mut Reader::new(&bytes[..end])), Err(Malformed));
        }
        let endless = [0x8000_0000_u32.to_be_bytes(), u32::MAX.to_be_bytes()].concat();
        assert_eq!(Attributes::read(&mut Reader::new(&endless)), Err(Malformed));
    }
}
