//! The wire format: big-endian numbers and length-prefixed strings.

use std::{ffi::OsStr, io, os::unix::ffi::OsStrExt, path::Path};

use rustix::io::Errno;

/// As in OpenSSH, which clients tune themselves to.
pub const MAX_PACKET: usize = 256 * 1024;
/// Data of one read or write: what fits a packet with room for the rest of it.
pub const MAX_DATA: usize = MAX_PACKET - 1024;

pub mod kind {
    pub const INIT: u8 = 1;
    pub const VERSION: u8 = 2;
    pub const OPEN: u8 = 3;
    pub const CLOSE: u8 = 4;
    pub const READ: u8 = 5;
    pub const WRITE: u8 = 6;
    pub const LSTAT: u8 = 7;
    pub const FSTAT: u8 = 8;
    pub const SETSTAT: u8 = 9;
    pub const FSETSTAT: u8 = 10;
    pub const OPENDIR: u8 = 11;
    pub const READDIR: u8 = 12;
    pub const REMOVE: u8 = 13;
    pub const MKDIR: u8 = 14;
    pub const RMDIR: u8 = 15;
    pub const REALPATH: u8 = 16;
    pub const STAT: u8 = 17;
    pub const RENAME: u8 = 18;
    pub const READLINK: u8 = 19;
    pub const SYMLINK: u8 = 20;
    pub const STATUS: u8 = 101;
    pub const HANDLE: u8 = 102;
    pub const DATA: u8 = 103;
    pub const NAME: u8 = 104;
    pub const ATTRS: u8 = 105;
    pub const EXTENDED: u8 = 200;
    pub const EXTENDED_REPLY: u8 = 201;
}

/// A request that is too short, or says so of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    Ok,
    Eof,
    NoSuchFile,
    Denied,
    Failure(String),
    BadMessage,
    Unsupported,
}

impl Status {
    pub fn failure(message: &str) -> Self {
        Self::Failure(message.to_owned())
    }

    const fn code(&self) -> u32 {
        match self {
            Self::Ok => 0,
            Self::Eof => 1,
            Self::NoSuchFile => 2,
            Self::Denied => 3,
            Self::Failure(_) => 4,
            Self::BadMessage => 5,
            Self::Unsupported => 8,
        }
    }

    fn message(&self) -> &str {
        match self {
            Self::Ok => "Success",
            Self::Eof => "End of file",
            Self::NoSuchFile => "No such file",
            Self::Denied => "Permission denied",
            Self::Failure(message) => message,
            Self::BadMessage => "Bad message",
            Self::Unsupported => "Operation unsupported",
        }
    }
}

impl From<Malformed> for Status {
    fn from(Malformed: Malformed) -> Self {
        Self::BadMessage
    }
}

impl From<Errno> for Status {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::BADF | Errno::LOOP => Self::NoSuchFile,
            Errno::PERM | Errno::ACCESS | Errno::FAULT => Self::Denied,
            Errno::NAMETOOLONG | Errno::INVAL => Self::BadMessage,
            Errno::NOSYS | Errno::OPNOTSUPP => Self::Unsupported,
            // Text such as "No space left on device (os error 28)", less the number.
            other => {
                let text = io::Error::from(other).to_string();
                Self::Failure(text.split(" (os error").next().unwrap_or("Failure").to_owned())
            }
        }
    }
}

impl From<io::Error> for Status {
    fn from(error: io::Error) -> Self {
        Errno::from_io_error(&error).map_or_else(|| Self::failure("Failure"), Self::from)
    }
}

#[derive(Debug)]
pub struct Reader<'p> {
    rest: &'p [u8],
}

impl<'p> Reader<'p> {
    pub const fn new(rest: &'p [u8]) -> Self {
        Self { rest }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }

    pub fn string(&mut self) -> Result<&'p [u8], Malformed> {
        let length = self.u32()? as usize;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// An empty path is the working directory, as in OpenSSH.
    pub fn path(&mut self) -> Result<&'p Path, Malformed> {
        match self.string()? {
            bytes if bytes.contains(&0) => Err(Malformed),
            [] => Ok(Path::new(".")),
            bytes => Ok(Path::new(OsStr::from_bytes(bytes))),
        }
    }
}

/// Answers, gathered.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// One answer: its length is filled in when its content is known.
    pub fn packet(&mut self, kind: u8, id: u32, content: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        self.u32(0);
        self.bytes.push(kind);
        self.u32(id);
        content(self);
        self.patch(at, self.bytes.len() - at - 4);
    }

    /// A data answer, read straight into place by `read`, which says how much.
    pub fn data(
        &mut self,
        id: u32,
        limit: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Status>,
    ) -> Result<(), Status> {
        const BEFORE: usize = 4 + 1 + 4 + 4;
        let at = self.bytes.len();
        self.packet(kind::DATA, id, |writer| writer.u32(0));
        self.bytes.resize(at + BEFORE + limit, 0);
        let read = read(self.bytes.get_mut(at + BEFORE..).unwrap_or_default());
        let count = *read.as_ref().unwrap_or(&0);
        if count == 0 {
            self.bytes.truncate(at);
            return Err(read.err().unwrap_or(Status::Eof));
        }
        self.bytes.truncate(at + BEFORE + count);
        self.patch(at, BEFORE - 4 + count);
        self.patch(at + BEFORE - 4, count);
        Ok(())
    }

    pub fn status(&mut self, id: u32, status: &Status) {
        self.packet(kind::STATUS, id, |writer| {
            writer.u32(status.code());
            writer.string(status.message().as_bytes());
            writer.string(b"");
        });
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    pub fn string(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes already in the wire format.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn patch(&mut self, at: usize, value: usize) {
        let value = u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes();
        if let Some(place) = self.bytes.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut::<4>()) {
            *place = value;
        }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_no_further_than_there_is() {
        let mut reader = Reader::new(&[0, 0, 0, 2, b'a', b'b', 0, 0, 0, 9, b'x']);
        assert_eq!(reader.string(), Ok(&b"ab"[..]));
        assert_eq!(reader.string(), Err(Malformed));
        assert_eq!(Reader::new(&[0, 0, 0, 2, b'a', 0]).path(), Err(Malformed));
        assert_eq!(Reader::new(&[0, 0, 0, 0]).path(), Ok(Path::new(".")));
    }

    #[test]
    fn a_data_answer_is_as_long_as_what_was_read() {
        let mut writer = Writer::default();
        let read = |buffer: &mut [u8]| {
            buffer[..3].copy_from_slice(b"abc");
            Ok(3)
        };
        writer.data(7, 100, read).unwrap();
        assert_eq!(writer.as_slice(), [&[0, 0, 0, 12, 103, 0, 0, 0, 7, 0, 0, 0, 3][..], b"abc"].concat());
        assert_eq!(writer.data(8, 100, |_| Ok(0)), Err(Status::Eof));
        assert_eq!(writer.data(8, 100, |_| Err(Status::Denied)), Err(Status::Denied));
        assert_eq!(writer.len(), 16);
    }

    #[test]
    fn failures_say_why() {
        assert_eq!(Status::from(Errno::NOSPC), Status::failure("No space left on device"));
        assert_eq!(Status::from(Errno::NOENT), Status::NoSuchFile);
    }
}
