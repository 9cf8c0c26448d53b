//! Taps, opened in the calling thread's namespace.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsRawFd, OwnedFd},
};

nix::ioctl_write_ptr_bad!(tun_set_iff, request::TUNSETIFF, libc::ifreq);
nix::ioctl_write_int_bad!(tun_set_persist, request::TUNSETPERSIST);

mod request {
    pub const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    pub const TUNSETPERSIST: libc::c_ulong = 0x4004_54cb;
}

/// Makes a tap, or opens one that is there and unused. It outlives its
/// descriptor, so that a machine's link stays when its hypervisor goes.
#[allow(unsafe_code)]
pub fn open(name: &str) -> io::Result<OwnedFd> {
    let file: File = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: an all-zero ifreq is valid; it is plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *place = byte as libc::c_char;
    }
    // Headers carry segmentation and checksum offload: without them a guest
    // sends 1,500 bytes at a time.
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the descriptor is open and the request outlives the call.
    unsafe {
        tun_set_iff(file.as_raw_fd(), &request)?;
        tun_set_persist(file.as_raw_fd(), 1)?;
    }
    Ok(file.into())
}

/// A packet socket on a tap: it looks on, in both directions.
#[allow(unsafe_code)]
pub fn onlooker(name: &str) -> io::Result<OwnedFd> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll)?;
    let index = nix::net::if_::if_nametoindex(name)?;
    // SAFETY: an all-zero sockaddr_ll is valid; it is plain data.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a whole sockaddr_ll and outlives the call.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}
