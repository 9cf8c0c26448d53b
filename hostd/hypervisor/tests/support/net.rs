//! A network namespace with a machine's two taps, as hostd makes it.

use anyhow::{Context, Result, ensure};
use berth_guest_protocol as guest;
use nix::{
    libc,
    sched::{CloneFlags, setns, unshare},
};
use std::{
    fs::File,
    net::{SocketAddr, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    process::Command,
    sync::Arc,
    time::Duration,
};

pub struct Net {
    /// The only reference: closed, the namespace and its taps are gone.
    pub netns: Arc<OwnedFd>,
    pub ctl: OwnedFd,
    pub eth: OwnedFd,
}

impl Net {
    pub fn new() -> Result<Self> {
        inside(None, || {
            let netns = Arc::new(OwnedFd::from(File::open("/proc/thread-self/ns/net")?));
            let ctl = tap("ctl")?;
            let eth = tap("eth")?;
            for words in [
                format!("link set ctl address {} up", mac(guest::CTL_HOST_MAC)),
                format!("addr add {}/{} dev ctl", ip(guest::HOST_ADDRESS), guest::PREFIX),
                format!(
                    "neigh add {} lladdr {} dev ctl nud permanent",
                    ip(guest::GUEST_ADDRESS),
                    mac(guest::CTL_GUEST_MAC)
                ),
                format!("link set eth address {} up", mac(guest::ETH_HOST_MAC)),
            ] {
                let status = Command::new("ip").args(words.split(' ')).status().context("running ip")?;
                ensure!(status.success(), "ip {words}: {status}");
            }
            Ok(Self { netns, ctl, eth })
        })
    }

    /// For a driver without guests, which only closes what it is given.
    pub fn none() -> Result<Self> {
        let null = || File::open("/dev/null").map(OwnedFd::from);
        Ok(Self { netns: Arc::new(null()?), ctl: null()?, eth: null()? })
    }
}

/// A connection to the guest, if it answers within the limit.
pub fn connect(netns: &Arc<OwnedFd>, limit: Duration) -> Result<TcpStream> {
    let address = SocketAddr::from((guest::GUEST_ADDRESS, guest::PORT));
    inside(Some(netns.clone()), move || {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    })
}

/// Runs something in another namespace, or a new one, on a thread that ends
/// with it: a thread that has changed its namespace is of no other use.
fn inside<T: Send + 'static>(
    netns: Option<Arc<OwnedFd>>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let thread = std::thread::spawn(move || {
        match netns {
            Some(netns) => setns(&*netns, CloneFlags::CLONE_NEWNET),
            None => unshare(CloneFlags::CLONE_NEWNET),
        }
        .context("entering a network namespace")?;
        work()
    });
    thread.join().map_err(|_| anyhow::anyhow!("the namespace's thread panicked"))?
}

#[allow(unsafe_code)]
fn tap(name: &str) -> Result<OwnedFd> {
    let file = File::options().read(true).write(true).open("/dev/net/tun").context("/dev/net/tun")?;
    // SAFETY: all zeroes is a valid ifreq, and the kernel only reads and
    // writes the struct it is given.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *place = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
        ensure!(
            libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) == 0,
            "{}",
            std::io::Error::last_os_error()
        );
    }
    Ok(file.into())
}

fn ip(address: [u8; 4]) -> String {
    std::net::Ipv4Addr::from(address).to_string()
}

fn mac(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}
