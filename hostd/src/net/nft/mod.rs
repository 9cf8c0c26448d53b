//! A batch for the kernel's nftables, as netlink wants it.
//!
//! Machines' namespaces all have the same dozen rules, and they are made on the
//! way of every start: messages written here take tens of microseconds, where a
//! process would take milliseconds. Only what those rules need is here.

mod kernel;
mod log;
mod rule;

pub use log::listen;
pub use rule::Rule;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const CREATE: u16 = REQUEST | (libc::NLM_F_ACK | libc::NLM_F_CREATE) as u16;
const APPEND: u16 = CREATE | libc::NLM_F_APPEND as u16;
const NESTED: u16 = libc::NLA_F_NESTED as u16;
const HEADER: usize = 16;

/// Of attributes, one inside the other.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    pub fn bytes(mut self, kind: libc::c_int, value: &[u8]) -> Self {
        self.push(kind as u16, value);
        self
    }

    pub fn number(self, kind: libc::c_int, value: libc::c_int) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn text(self, kind: libc::c_int, value: &str) -> Self {
        let mut ended = value.as_bytes().to_vec();
        ended.push(0);
        self.bytes(kind, &ended)
    }

    pub fn nest(mut self, kind: libc::c_int, inner: Self) -> Self {
        self.push(kind as u16 | NESTED, &inner.0);
        self
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// What takes effect together, or not at all.
#[derive(Debug)]
pub struct Batch {
    messages: Vec<u8>,
    table: &'static str,
    /// Messages that the kernel answers.
    answers: u32,
}

impl Batch {
    /// Begins with an empty table of this name, for IPv4.
    pub fn new(table: &'static str) -> Self {
        let mut batch = Self { messages: Vec::new(), table, answers: 0 };
        batch.frame(libc::NFNL_MSG_BATCH_BEGIN as u16, REQUEST, Attributes::default());
        let named = || Attributes::default().text(kernel::TABLE_NAME, table);
        // Made, so that it can be removed with whatever it had; then made anew.
        for message in [libc::NFT_MSG_NEWTABLE, libc::NFT_MSG_DELTABLE, libc::NFT_MSG_NEWTABLE] {
            batch.add(message, CREATE, named());
        }
        batch
    }

    /// A chain that the kernel enters at a hook. What no rule decides is accepted.
    pub fn chain(&mut self, name: &str, kind: &str, hook: libc::c_int, priority: libc::c_int) {
        let place =
            Attributes::default().number(kernel::HOOK_HOOKNUM, hook).number(kernel::HOOK_PRIORITY, priority);
        let chain = Attributes::default()
            .text(kernel::CHAIN_TABLE, self.table)
            .text(kernel::CHAIN_NAME, name)
            .nest(kernel::CHAIN_HOOK, place)
            .number(kernel::CHAIN_POLICY, libc::NF_ACCEPT)
            .text(kernel::CHAIN_TYPE, kind);
        self.add(libc::NFT_MSG_NEWCHAIN, CREATE, chain);
    }

    /// A chain that rules lead to.
    pub fn branch(&mut self, name: &str) {
        let chain =
            Attributes::default().text(kernel::CHAIN_TABLE, self.table).text(kernel::CHAIN_NAME, name);
        self.add(libc::NFT_MSG_NEWCHAIN, CREATE, chain);
    }

    pub fn rule(&mut self, chain: &str, rule: Rule) {
        let rule = Attributes::default()
            .text(kernel::RULE_TABLE, self.table)
            .text(kernel::RULE_CHAIN, chain)
            .nest(kernel::RULE_EXPRESSIONS, rule.0);
        self.add(libc::NFT_MSG_NEWRULE, APPEND, rule);
    }

    fn add(&mut self, message: libc::c_int, flags: u16, body: Attributes) {
        self.answers += 1;
        self.frame(SUBSYSTEM | message as u16, flags, body);
    }

    fn frame(&mut self, kind: u16, flags: u16, body: Attributes) {
        let bounds = kind == libc::NFNL_MSG_BATCH_BEGIN as u16 || kind == libc::NFNL_MSG_BATCH_END as u16;
        let family = if bounds { libc::AF_UNSPEC } else { libc::NFPROTO_IPV4 };
        let resource = if bounds { libc::NFNL_SUBSYS_NFTABLES as u16 } else { 0 };
        append(&mut self.messages, (kind, flags, self.answers), (family, resource), &body);
    }

    /// Sends it to the calling thread's namespace.
    pub fn commit(mut self) -> io::Result<()> {
        self.frame(libc::NFNL_MSG_BATCH_END as u16, REQUEST, Attributes::default());
        ask(&self.messages, self.answers).map(drop)
    }
}

/// `nlmsghdr` (kind, flags, serial), `nfgenmsg` (family, resource), attributes.
fn append(
    messages: &mut Vec<u8>,
    (kind, flags, serial): (u16, u16, u32),
    (family, resource): (libc::c_int, u16),
    body: &Attributes,
) {
    let length = u32::try_from(HEADER + 4 + body.0.len()).unwrap_or(u32::MAX);
    messages.extend_from_slice(&length.to_ne_bytes());
    messages.extend_from_slice(&kind.to_ne_bytes());
    messages.extend_from_slice(&flags.to_ne_bytes());
    messages.extend_from_slice(&serial.to_ne_bytes());
    messages.extend_from_slice(&[0; 4]);
    messages.extend_from_slice(&[family as u8, libc::NFNETLINK_V0 as u8]);
    messages.extend_from_slice(&resource.to_be_bytes());
    messages.extend_from_slice(&body.0);
}

/// Sends these to the kernel and reads so many answers, on a socket of its own,
/// which is given back.
fn ask(messages: &[u8], answers: u32) -> io::Result<OwnedFd> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkNetFilter,
    )?;
    // The kernel answers before `send` returns; this only ends a wait that would have no end.
    let patience = nix::sys::time::TimeVal::new(5, 0);
    setsockopt(&netlink, sockopt::ReceiveTimeout, &patience)?;
    send(netlink.as_raw_fd(), messages, MsgFlags::empty())?;
    let mut left = answers;
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let count = recv(netlink.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = buffer.get(..count).unwrap_or_default();
        while let Some((error, length)) = answer(rest) {
            if error != 0 {
                return Err(io::Error::from_raw_os_error(-error));
            }
            left = left.saturating_sub(1);
            rest = rest.get(length..).unwrap_or_default();
        }
    }
    Ok(netlink)
}

/// The error number of an `nlmsgerr`, and the length of the whole message.
fn answer(bytes: &[u8]) -> Option<(i32, usize)> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    if length < HEADER || libc::c_int::from(kind) != libc::NLMSG_ERROR {
        return None;
    }
    let error = i32::from_ne_bytes(*bytes.get(HEADER..)?.first_chunk()?);
    Some((error, length.next_multiple_of(4)))
}
