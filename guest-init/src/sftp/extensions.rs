//! OpenSSH's extensions: announced in the greeting, called by name.

use rustix::fs::{StatVfs, StatVfsMountFlags, fstatvfs, statvfs};

use super::{
    Handled, Server,
    packet::{MAX_DATA, MAX_PACKET, Reader, Status, Writer, kind},
};

const VERSION: u32 = 3;
const EXTENSIONS: [(&[u8], &[u8]); 10] = [
    (b"posix-rename@openssh.com", b"1"),
    (b"statvfs@openssh.com", b"2"),
    (b"fstatvfs@openssh.com", b"2"),
    (b"hardlink@openssh.com", b"1"),
    (b"fsync@openssh.com", b"1"),
    (b"lsetstat@openssh.com", b"1"),
    (b"limits@openssh.com", b"1"),
    (b"expand-path@openssh.com", b"1"),
    (b"copy-data", b"1"),
    (b"home-directory", b"1"),
];

pub fn greet(out: &mut Writer) {
    // The version stands where other answers have their id.
    out.packet(kind::VERSION, VERSION, |writer| {
        for (name, version) in EXTENSIONS {
            writer.string(name);
            writer.string(version);
        }
    });
}

impl Server {
    pub(super) fn extended(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        match reader.string()? {
            b"posix-rename@openssh.com" => self.posix_rename(id, reader),
            b"statvfs@openssh.com" => {
                let found = statvfs(reader.path()?)?;
                self.give_statvfs(id, &found)
            }
            b"fstatvfs@openssh.com" => {
                let found = fstatvfs(self.handles.file(reader)?)?;
                self.give_statvfs(id, &found)
            }
            b"hardlink@openssh.com" => self.hardlink(id, reader),
            b"fsync@openssh.com" => self.fsync(id, reader),
            b"lsetstat@openssh.com" => self.setstat(id, reader, false),
            b"limits@openssh.com" => self.limits(id),
            b"expand-path@openssh.com" => self.expand_path(id, reader),
            b"copy-data" => self.copy_data(id, reader),
            b"home-directory" => self.home_directory(id, reader),
            _ => Err(Status::Unsupported),
        }
    }

    fn give_statvfs(&mut self, id: u32, found: &StatVfs) -> Handled {
        const READ_ONLY: u64 = 1;
        const NO_SUID: u64 = 2;
        let mut flags = 0;
        if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
            flags |= READ_ONLY;
        }
        if found.f_flag.contains(StatVfsMountFlags::NOSUID) {
            flags |= NO_SUID;
        }
        let fields = [
            found.f_bsize,
            found.f_frsize,
            found.f_blocks,
            found.f_bfree,
            found.f_bavail,
            found.f_files,
            found.f_ffree,
            found.f_favail,
            found.f_fsid,
            flags,
            found.f_namemax,
        ];
        self.out.packet(kind::EXTENDED_REPLY, id, |writer| {
            fields.into_iter().for_each(|field| writer.u64(field))
        });
        Ok(())
    }

    fn limits(&mut self, id: u32) -> Handled {
        // Standard streams and the directory being listed are ours.
        let handles = self.max_handles.saturating_sub(8);
        let fields = [MAX_PACKET as u64, MAX_DATA as u64, MAX_DATA as u64, handles];
        self.out.packet(kind::EXTENDED_REPLY, id, |writer| {
            fields.into_iter().for_each(|field| writer.u64(field))
        });
        Ok(())
    }
}
