//! Requests that work on open files.

use rustix::{
    fs::{Mode, OFlags, open},
    io::{Errno, pread, pwrite},
};

use super::{
    Handled, Server,
    attributes::{self, Attributes},
    handles::Handle,
    packet::{MAX_DATA, Reader, Status, kind},
};

const READ: u32 = 0x01;
const WRITE: u32 = 0x02;
const APPEND: u32 = 0x04;
const CREATE: u32 = 0x08;
const TRUNCATE: u32 = 0x10;
const EXCLUSIVE: u32 = 0x20;

fn open_flags(wanted: u32) -> OFlags {
    let has = |flag| wanted & flag != 0;
    let mut flags = match (has(READ), has(WRITE)) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    };
    flags.set(OFlags::APPEND, has(APPEND));
    flags.set(OFlags::CREATE, has(CREATE));
    flags.set(OFlags::TRUNC, has(TRUNCATE));
    flags.set(OFlags::EXCL, has(EXCLUSIVE));
    flags | OFlags::CLOEXEC | OFlags::NOCTTY
}

impl Server {
    pub(super) fn open(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let path = reader.path()?;
        let flags = open_flags(reader.u32()?);
        let attributes = Attributes::read(reader)?;
        let file = open(path, flags, attributes.mode(0o666))?;
        let handle = self.handles.insert(Handle::File(file));
        self.give_handle(id, handle)
    }

    pub(super) fn give_handle(&mut self, id: u32, handle: u32) -> Handled {
        self.out.packet(kind::HANDLE, id, |writer| writer.string(&handle.to_be_bytes()));
        Ok(())
    }

    pub(super) fn close(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        drop(self.handles.remove(reader)?);
        self.done(id)
    }

    pub(super) fn read(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let file = self.handles.file(reader)?;
        let offset = reader.u64()?;
        let limit = (reader.u32()? as usize).min(MAX_DATA);
        self.out.data(id, limit, |buffer| match pread(file, &mut *buffer, offset) {
            // Pipes and terminals have no places.
            Err(Errno::SPIPE) => Ok(rustix::io::read(file, buffer)?),
            other => Ok(other?),
        })
    }

    pub(super) fn write(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let file = self.handles.file(reader)?;
        let mut offset = reader.u64()?;
        let mut data = reader.string()?;
        while !data.is_empty() {
            let count = match pwrite(file, data, offset) {
                Err(Errno::SPIPE) => rustix::io::write(file, data)?,
                Err(Errno::INTR) => 0,
                other => other?,
            };
            data = data.get(count..).unwrap_or_default();
            offset = offset.saturating_add(count as u64);
        }
        self.done(id)
    }

    pub(super) fn fstat(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let stat = rustix::fs::fstat(self.handles.get(reader)?.fd()?)?;
        self.out.packet(kind::ATTRS, id, |writer| attributes::write(writer, &stat));
        Ok(())
    }

    pub(super) fn fsetstat(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let handle = self.handles.get(reader)?;
        let attributes = Attributes::read(reader)?;
        attributes.apply_to_file(handle.fd()?)?;
        self.done(id)
    }

    pub(super) fn fsync(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        rustix::fs::fsync(self.handles.file(reader)?)?;
        self.done(id)
    }

    /// Copies within the machine; a length of 0 is all there is.
    pub(super) fn copy_data(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let from = self.handles.file(reader)?;
        let mut at = reader.u64()?;
        let length = reader.u64()?;
        let to = self.handles.file(reader)?;
        let mut into = reader.u64()?;
        let (source, target) = (rustix::fs::fstat(from)?, rustix::fs::fstat(to)?);
        if (source.st_dev, source.st_ino) == (target.st_dev, target.st_ino) {
            return Err(Status::failure("Cannot copy a file onto itself"));
        }
        let mut left = if length == 0 { u64::MAX } else { length };
        let mut buffer = vec![0; MAX_DATA];
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let count = pread(from, buffer.get_mut(..want).unwrap_or_default(), at)?;
            let mut rest = buffer.get(..count).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            while !rest.is_empty() {
                let written = pwrite(to, rest, into)?;
                into = into.saturating_add(written as u64);
                rest = rest.get(written..).unwrap_or_default();
            }
            at = at.saturating_add(count as u64);
            left = left.saturating_sub(count as u64);
        }
        self.done(id)
    }

    pub(super) fn opendir(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listing = rustix::fs::Dir::new(open(reader.path()?, flags, Mode::empty())?)?;
        let handle = self.handles.insert(Handle::Directory(listing));
        self.give_handle(id, handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_translated() {
        let kept = OFlags::CLOEXEC | OFlags::NOCTTY;
        assert_eq!(open_flags(READ), OFlags::RDONLY | kept);
        assert_eq!(open_flags(READ | WRITE | CREATE), OFlags::RDWR | OFlags::CREATE | kept);
        let all = WRITE | APPEND | CREATE | TRUNCATE | EXCLUSIVE;
        let expected = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::TRUNC | OFlags::EXCL;
        assert_eq!(open_flags(all), expected | kept);
    }
}
