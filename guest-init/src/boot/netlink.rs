//! The few requests to the kernel's routing socket that a machine needs.

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with},
};

const REQUEST: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
const CREATE: u16 = REQUEST | (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
const HEADER: usize = 16;
const UP: u32 = libc::IFF_UP as u32;

/// Speaks to the network namespace in which it was opened.
pub struct Netlink {
    socket: OwnedFd,
}

/// A message's body after the fixed part: attributes, aligned to four bytes.
struct Body(Vec<u8>);

impl Body {
    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

impl Netlink {
    pub fn open() -> io::Result<Self> {
        // Protocol 0 of this family is routing.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket })
    }

    pub fn index(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.socket, name)?)
    }

    pub fn set_up(&self, index: u32) -> io::Result<()> {
        self.request(libc::RTM_NEWLINK, REQUEST, link(index, UP))
    }

    pub fn rename(&self, index: u32, name: &str) -> io::Result<()> {
        self.request(
            libc::RTM_NEWLINK,
            REQUEST,
            link(index, 0).attribute(libc::IFLA_IFNAME, &zero_ended(name)),
        )
    }

    /// Moves a link to another namespace, under the name it is to have there.
    pub fn move_to(&self, index: u32, namespace: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let body = link(index, 0)
            .attribute(libc::IFLA_NET_NS_FD, &namespace.as_fd().as_raw_fd().to_ne_bytes())
            .attribute(libc::IFLA_IFNAME, &zero_ended(name));
        self.request(libc::RTM_NEWLINK, REQUEST, body)
    }

    pub fn add_address(&self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut fixed = vec![libc::AF_INET as u8, prefix, 0, 0];
        fixed.extend_from_slice(&index.to_ne_bytes());
        let body = Body(fixed)
            .attribute(libc::IFA_LOCAL, &address.octets())
            .attribute(libc::IFA_ADDRESS, &address.octets());
        self.request(libc::RTM_NEWADDR, CREATE, body)
    }

    pub fn add_default_route(&self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        let fixed = vec![
            libc::AF_INET as u8,
            0,
            0,
            0,
            libc::RT_TABLE_MAIN,
            libc::RTPROT_BOOT,
            libc::RT_SCOPE_UNIVERSE,
            libc::RTN_UNICAST,
            0,
            0,
            0,
            0,
        ];
        let body = Body(fixed)
            .attribute(libc::RTA_GATEWAY, &gateway.octets())
            .attribute(libc::RTA_OIF, &index.to_ne_bytes());
        self.request(libc::RTM_NEWROUTE, CREATE, body)
    }

    /// A neighbour that need not be asked for, now or after a resume.
    pub fn add_neighbour(&self, index: u32, address: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
        let mut fixed = vec![libc::AF_INET as u8, 0, 0, 0];
        fixed.extend_from_slice(&index.to_ne_bytes());
        fixed.extend_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
        fixed.extend_from_slice(&[0, 0]);
        let body = Body(fixed).attribute(libc::NDA_DST, &address.octets()).attribute(libc::NDA_LLADDR, &mac);
        self.request(libc::RTM_NEWNEIGH, CREATE, body)
    }

    fn request(&self, kind: u16, flags: u16, body: Body) -> io::Result<()> {
        let length = u32::try_from(HEADER + body.0.len()).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(HEADER + body.0.len());
        message.extend_from_slice(&length.to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&flags.to_ne_bytes());
        // One request at a time: no number is needed to tell answers apart.
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(&body.0);
        send(&self.socket, &message, SendFlags::empty())?;
        let mut answer = [0_u8; 4096];
        let count = rustix::io::read(&self.socket, &mut answer)?;
        acknowledged(answer.get(..count).unwrap_or_default())
    }
}

fn link(index: u32, flags: u32) -> Body {
    let mut fixed = vec![0; 4];
    fixed.extend_from_slice(&index.to_ne_bytes());
    fixed.extend_from_slice(&flags.to_ne_bytes());
    // Which of the flags are meant.
    fixed.extend_from_slice(&flags.to_ne_bytes());
    Body(fixed)
}

fn zero_ended(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

/// An acknowledgement is an error message whose error is none.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..).and_then(|rest| rest.first_chunk::<2>()).map(|b| u16::from_ne_bytes(*b));
    let code = answer.get(HEADER..).and_then(|rest| rest.first_chunk::<4>()).map(|b| i32::from_ne_bytes(*b));
    match (kind.map(i32::from), code) {
        (Some(libc::NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(libc::NLMSG_ERROR), Some(code)) => Err(Errno::from_raw_os_error(code.saturating_neg()).into()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_aligned() {
        let body = Body(Vec::new()).attribute(3, b"eth0\0").attribute(4, &[1, 2, 3, 4]);
        assert_eq!(body.0, [9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0, 8, 0, 4, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn an_answer_is_an_acknowledgement_or_an_error() {
        let mut answer = [0_u8; 36];
        answer[4] = 2;
        assert!(acknowledged(&answer).is_ok());
        answer[16..20].copy_from_slice(&(-libc::EEXIST).to_ne_bytes());
        assert_eq!(acknowledged(&answer).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert!(acknowledged(&[]).is_err());
    }
}
