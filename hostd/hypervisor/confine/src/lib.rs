//! What a hypervisor's process does to itself before it is one, and how one that
//! waits is told whose it becomes. hostd does it in a child that is about to
//! execute, `berth-linked` in a program that was linked ahead.

use rustix::{
    fs::{Gid, Mode, OFlags, Uid},
    io::Result,
    process::{Resource, Rlimit},
    thread::LinkNameSpaceType,
};
use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{BorrowedFd, RawFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
};

/// A guest's memory is in files, so under pressure its process is a better
/// victim than hostd, which all machines share.
const OOM_SCORE: &[u8] = b"500";

/// Leaves everything behind that is the host's. System calls only, for a child may
/// have its parent's memory. The order matters: what needs root comes first.
pub fn confine(netns: BorrowedFd<'_>, uid: u32, groups: &[Gid]) -> Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    rustix::thread::move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?;
    rustix::process::setsid()?;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    let score =
        rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&score, OOM_SCORE)?;
    rustix::thread::set_thread_groups(groups)?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    rustix::thread::set_no_new_privs(true)
}

/// Where a program that was linked ahead finds the socket that its order comes by.
pub const ORDERS: RawFd = 3;
/// With an order come its network namespace, its log, and what its arguments speak
/// of: the first of those by this number, the others by the next ones.
pub const FIRST: RawFd = 32;
/// The most that come beside an order.
pub const DESCRIPTORS: usize = 8;
/// The longest order.
pub const LONGEST: usize = 64 * 1024;

/// What a program that was linked ahead is to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its machine's.
    pub directory: OsString,
    pub uid: u32,
    pub groups: Vec<u32>,
    /// Its name is the first.
    pub arguments: Vec<OsString>,
}

impl Order {
    /// Words that end with a zero byte each: none may have one in it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let numbers = [self.uid].iter().chain(&self.groups).map(u32::to_string).collect::<Vec<_>>().join(" ");
        let words = [self.directory.as_os_str(), OsStr::new(&numbers)];
        let words = words.into_iter().chain(self.arguments.iter().map(OsString::as_os_str));
        words.flat_map(|word| word.as_bytes().iter().copied().chain([0])).collect()
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let words = bytes.strip_suffix(&[0])?;
        let mut words = words.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
        let directory = words.next()?;
        let numbers = words.next()?.into_string().ok()?;
        let mut numbers = numbers.split(' ').map(|number| number.parse().ok());
        let uid = numbers.next()??;
        let groups = numbers.collect::<Option<_>>()?;
        Some(Self { directory, uid, groups, arguments: words.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_arrives_as_it_was_given() {
        let order = Order {
            directory: "/pool/a b".into(),
            uid: 700_001,
            groups: vec![104],
            arguments: ["qemu", "", "-name", "x"].map(OsString::from).into(),
        };
        assert_eq!(Order::parse(&order.to_bytes()), Some(order.clone()));
        let plain = Order { groups: vec![], ..order };
        assert_eq!(Order::parse(&plain.to_bytes()), Some(plain));
    }

    #[test]
    fn half_an_order_is_none() {
        assert_eq!(Order::parse(b""), None);
        assert_eq!(Order::parse(b"/pool\0seven\0qemu\0"), None);
        assert_eq!(Order::parse(b"/pool\x007\0qem"), None);
    }
}
