//! The user whom everything runs for, read from the machine's own passwd and
//! group files: a static program must not load the guest's NSS modules into
//! PID 1.

use std::{
    collections::HashMap,
    ffi::{CString, OsStr, OsString},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Gid, Uid},
    thread,
};

use crate::error::{Context, Result};

/// The login name in every image.
const NAME: &str = "dev";
const FALLBACK_ID: u32 = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: OsString,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: PathBuf,
    pub shell: PathBuf,
}

/// Whom to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// `dev`, in a machine.
    Dev,
    /// Whoever runs us, on a host.
    #[cfg(feature = "hosted")]
    Current,
}

impl Account {
    /// Read anew for every stream: the user may edit these files. A damaged
    /// passwd file must not lock them out, so there is always an answer.
    pub fn lookup(who: Who) -> Self {
        let passwd = fs::read("/etc/passwd").unwrap_or_default();
        let group = fs::read("/etc/group").unwrap_or_default();
        match who {
            Who::Dev => Self::parse(&passwd, &group, |name, _| name == NAME.as_bytes())
                .or_else(|| Self::parse(&passwd, &group, |_, uid| uid == FALLBACK_ID))
                .unwrap_or_else(|| Self::bare(FALLBACK_ID, FALLBACK_ID)),
            #[cfg(feature = "hosted")]
            Who::Current => {
                let uid = rustix::process::getuid().as_raw();
                Self::parse(&passwd, &group, |_, found| found == uid)
                    .unwrap_or_else(|| Self::bare(uid, rustix::process::getgid().as_raw()))
            }
        }
    }

    fn bare(uid: u32, gid: u32) -> Self {
        Self { name: NAME.into(), uid, gid, groups: vec![gid], home: "/".into(), shell: "/bin/sh".into() }
    }

    fn parse(passwd: &[u8], group: &[u8], wanted: impl Fn(&[u8], u32) -> bool) -> Option<Self> {
        passwd.split(|&b| b == b'\n').find_map(|line| {
            let fields: Vec<&[u8]> = line.split(|&b| b == b':').collect();
            let [name, _, uid, gid, _, home, shell] = fields.as_slice() else { return None };
            let (uid, gid) = (number(uid)?, number(gid)?);
            if !wanted(name, uid) {
                return None;
            }
            let or = |field: &[u8], default: &str| -> PathBuf {
                if field.is_empty() { default.into() } else { OsStr::from_bytes(field).into() }
            };
            Some(Self {
                name: OsString::from_vec(name.to_vec()),
                uid,
                gid,
                groups: supplementary(group, name, gid),
                home: or(home, "/"),
                shell: or(shell, "/bin/sh"),
            })
        })
    }

    /// Gives the calling thread, and only it, this account's rights for good:
    /// what the thread opens, binds or connects to is checked as the user's.
    /// Raw system calls, so it may also run between fork and exec.
    pub fn assume(&self) -> rustix::io::Result<()> {
        let mut groups = [Gid::ROOT; 64];
        let count = self.groups.len().min(groups.len());
        for (place, &group) in groups.iter_mut().zip(&self.groups) {
            *place = Gid::from_raw(group);
        }
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        thread::set_thread_groups(groups.get(..count).unwrap_or_default())?;
        thread::set_thread_res_gid(gid, gid, gid)?;
        thread::set_thread_res_uid(uid, uid, uid)
    }

    pub fn home_c(&self) -> Result<CString> {
        c_string(&self.home)
    }
}

pub fn c_string(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).during("use the path", path.display())
}

/// The id of a group by name: `tty`, for terminals.
pub fn group_id(name: &str) -> Option<u32> {
    let group = fs::read("/etc/group").ok()?;
    group.split(|&b| b == b'\n').find_map(|line| {
        let mut fields = line.split(|&b| b == b':');
        (fields.next()? == name.as_bytes()).then(|| number(fields.nth(1)?)).flatten()
    })
}

/// Names by id, of a passwd or group file: both begin alike.
pub fn names(file: &str) -> HashMap<u32, String> {
    let text = fs::read(file).unwrap_or_default();
    text.split(|&b| b == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|&b| b == b':');
            let name = String::from_utf8_lossy(fields.next()?).into_owned();
            Some((number(fields.nth(1)?)?, name))
        })
        .collect()
}

pub fn home_of(user: &[u8]) -> Option<PathBuf> {
    let passwd = fs::read("/etc/passwd").ok()?;
    Account::parse(&passwd, b"", |name, _| name == user).map(|account| account.home)
}

fn supplementary(group: &[u8], user: &[u8], primary: u32) -> Vec<u32> {
    let mut ids = vec![primary];
    for line in group.split(|&b| b == b'\n') {
        let fields: Vec<&[u8]> = line.split(|&b| b == b':').collect();
        let [_, _, id, members] = fields.as_slice() else { continue };
        let Some(id) = number(id) else { continue };
        if members.split(|&b| b == b',').any(|member| member == user) && !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: &[u8] = b"root:x:0:\ntty:x:5:\nsudo:x:27:other,dev\nbroken\ndocker:x:900:dev\ndev:x:1000:\n";

    #[test]
    fn reads_the_user_and_its_groups() {
        let passwd = b"root:x:0:0:root:/root:/bin/bash\nnonsense\ndev:x:1000:1000:,,,:/home/dev:/bin/bash\n";
        let account = Account::parse(passwd, GROUP, |name, _| name == b"dev").unwrap();
        assert_eq!(account.uid, 1000);
        assert_eq!(account.groups, [1000, 27, 900]);
        assert_eq!(account.home, Path::new("/home/dev"));
        assert_eq!(account.shell, Path::new("/bin/bash"));
    }

    #[test]
    fn empty_fields_have_defaults_and_bad_ids_are_passed_over() {
        let passwd = b"dev:x:abc:1:::\ndev:x:7:8:::\n";
        let account = Account::parse(passwd, b"", |name, _| name == b"dev").unwrap();
        assert_eq!((account.uid, account.gid), (7, 8));
        assert_eq!(account.shell, Path::new("/bin/sh"));
        assert_eq!(account.home, Path::new("/"));
    }
}
