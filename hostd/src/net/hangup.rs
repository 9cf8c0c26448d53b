//! Hanging up for a guest that is gone.
//!
//! A guest that panicked or was cut off says no goodbye, and whoever is
//! connected to it would wait for ever. The kernel is told to end those
//! connections from the host's side.

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, send, socket};
use std::{io, os::fd::AsRawFd};

/// One end of a connection, as the kernel keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    address: [u8; 4],
    port: u16,
}

/// Ends every connection of the calling thread's namespace; returns how many.
pub fn everyone() -> io::Result<usize> {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp")?;
    let netlink =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    let mut count = 0;
    for (local, remote) in table.lines().filter_map(connection) {
        send(netlink.as_raw_fd(), &request(local, remote), MsgFlags::empty())?;
        count += 1;
    }
    Ok(count)
}

/// A line of /proc/net/tcp that is a connection: `0: 0100007F:1F90 0200007F:D431 01 …`.
fn connection(line: &str) -> Option<(End, End)> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote) = (end(fields.next()?)?, end(fields.next()?)?);
    (remote.port != 0).then_some((local, remote))
}

fn end(text: &str) -> Option<End> {
    let (address, port) = text.split_once(':')?;
    let address = u32::from_str_radix(address, 16).ok()?.to_ne_bytes();
    Some(End { address, port: u16::from_str_radix(port, 16).ok()? })
}

/// SOCK_DESTROY with an `inet_diag_req_v2` that names the connection.
fn request(local: End, remote: End) -> Vec<u8> {
    const LENGTH: u32 = 16 + 56;
    const SOCK_DESTROY: u16 = 21;
    const NLM_F_REQUEST: u16 = 1;
    let mut message = Vec::with_capacity(LENGTH as usize);
    message.extend(LENGTH.to_ne_bytes());
    message.extend(SOCK_DESTROY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([libc::AF_INET as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes());
    message.extend(local.port.to_be_bytes());
    message.extend(remote.port.to_be_bytes());
    for end in [local, remote] {
        message.extend(end.address);
        message.extend([0; 12]);
    }
    message.extend(0u32.to_ne_bytes());
    // No cookie: whichever socket has these ends.
    message.extend([0xff; 8]);
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
    };

    #[test]
    fn reads_the_kernels_table() {
        let line = "   0: 0100007F:1F90 0200007F:D431 01 00000000:00000000 00:00000000 00000000 0";
        let (local, remote) = connection(line).unwrap();
        assert_eq!(local, End { address: [127, 0, 0, 1], port: 8080 });
        assert_eq!(remote, End { address: [127, 0, 0, 2], port: 54321 });
        assert_eq!(connection("  sl  local_address rem_address   st"), None);
        assert_eq!(connection("   0: 0100007F:1F90 00000000:0000 0A 0"), None, "a listener");
        assert_eq!(request(local, remote).len(), 72);
    }

    #[test]
    fn whoever_waits_for_a_dead_peer_is_told() {
        berth_sys::needs_root!();
        // A thread in a namespace of its own: nobody else's connections are there.
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
            assert!(up.success());
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut waiting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let _silent = listener.accept().unwrap();
            let reader = std::thread::spawn(move || waiting.read(&mut [0; 1]));
            assert_eq!(everyone().unwrap(), 2);
            assert!(reader.join().unwrap().is_err(), "reset, not ended");
        })
        .join()
        .unwrap();
    }
}
