//! Making, finding and closing namespaces.

use crate::{
    error::{Error, FileContext, IoContext, Result},
    net::{Doors, Taps, rules, tap},
};
use berth_guest_protocol as guest;
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use rtnetlink::{
    Handle, LinkUnspec, RouteMessageBuilder,
    packet_route::route::{RouteScope, RouteType},
};
use std::{
    fs::{self, File},
    io,
    net::Ipv4Addr,
    os::fd::OwnedFd,
    path::Path,
};

/// One of the two links: its name and both ends.
struct End {
    name: &'static str,
    mac: [u8; 6],
    address: [u8; 4],
    prefix: u8,
    guest_mac: [u8; 6],
    guest_address: [u8; 4],
}

const CTL: End = End {
    name: "ctl0",
    mac: guest::CTL_HOST_MAC,
    address: guest::HOST_ADDRESS,
    prefix: guest::PREFIX,
    guest_mac: guest::CTL_GUEST_MAC,
    guest_address: guest::GUEST_ADDRESS,
};

const ETH: End = End {
    name: "eth0",
    mac: guest::ETH_HOST_MAC,
    address: guest::ETH_HOST_ADDRESS,
    // The rest of its network is ours as well: see `be_everybody`.
    prefix: 32,
    guest_mac: guest::ETH_GUEST_MAC,
    guest_address: guest::ETH_GUEST_ADDRESS,
};

/// Makes a namespace with both taps, configured and up, with its rules and the
/// bridge's sockets, and pins it at `path`.
pub fn make(path: &Path) -> Result<(OwnedFd, Taps, Doors)> {
    // A thread of its own: it ends in the new namespace and takes nobody along.
    let path = path.to_owned();
    let maker = std::thread::Builder::new().name("netns-maker".into()).spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).during("make a network namespace")?;
        // Machines speak IPv4 to the bridge; autoconfiguration would only add noise.
        let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        let taps = taps().during("make the taps")?;
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .during("configure a network")?
            .block_on(configure())?;
        let doors = guarded_doors().during("guard a network")?;
        File::create(&path).file("create", &path)?;
        let nothing = None::<&str>;
        mount(Some("/proc/thread-self/ns/net"), &path, nothing, MsFlags::MS_BIND, nothing)
            .file("pin", &path)?;
        let netns = File::open(&path).file("open", &path)?;
        Ok((netns.into(), taps, doors))
    });
    let maker = maker.during("start a thread")?;
    maker.join().unwrap_or_else(|_| Err(io::Error::other("its thread died")).during("make a network"))
}

/// The rules of the calling thread's namespace, then the sockets that they lead
/// to: nothing is ever served without them.
pub fn guarded_doors() -> io::Result<Doors> {
    rules::set()?;
    rules::doors()
}

/// Opens both taps in the calling thread's namespace, and makes those that are missing.
pub fn taps() -> io::Result<Taps> {
    Ok(Taps { ctl: tap::open(CTL.name)?, eth: tap::open(ETH.name)? })
}

/// Looks on at both, likewise.
pub fn onlookers() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok((tap::onlooker(CTL.name)?, tap::onlooker(ETH.name)?))
}

async fn configure() -> Result<()> {
    let (connection, handle, _) = rtnetlink::new_connection().during("open netlink")?;
    let driver = tokio::spawn(connection);
    for end in [&CTL, &ETH] {
        let failed = |source| Error::Network { operation: end.name, source };
        let index = nix::net::if_::if_nametoindex(end.name).during("find a tap")?;
        let link = LinkUnspec::new_with_index(index).address(end.mac.to_vec()).multicast(false).up();
        handle.link().set(link.build()).execute().await.map_err(failed)?;
        let address = Ipv4Addr::from(end.address).into();
        handle.address().add(index, address, end.prefix).execute().await.map_err(failed)?;
        // A permanent neighbour: no ARP, no first packet lost to it.
        let guest = Ipv4Addr::from(end.guest_address).into();
        let neighbour = handle.neighbours().add(index, guest).link_layer_address(&end.guest_mac);
        neighbour.execute().await.map_err(failed)?;
        if end.name == ETH.name {
            be_everybody(&handle, index).await.map_err(failed)?;
        }
    }
    driver.abort();
    Ok(())
}

/// Makes every address of the user's link but the guest's our own. A guest that
/// looks for a neighbour finds us, and the bridge refuses it and says so; otherwise
/// it would ask for a neighbour until it gives up, and nobody would hear of it.
async fn be_everybody(handle: &Handle, eth: u32) -> std::result::Result<(), rtnetlink::Error> {
    let to = |address: [u8; 4], prefix| {
        RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(address.into(), prefix)
            .output_interface(eth)
    };
    let guest = to(guest::ETH_GUEST_ADDRESS, 32).scope(RouteScope::Link).build();
    handle.route().add(guest).execute().await?;
    // In the main table: in the local one it would come before the guest's own.
    let others = to(guest::ETH_NETWORK, guest::ETH_PREFIX).kind(RouteType::Local).scope(RouteScope::Host);
    handle.route().add(others.build()).execute().await
}

pub fn find(path: &Path) -> Result<Option<OwnedFd>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).file("open", path),
    }
}

/// Unpins a namespace. The kernel ends it when its last process and socket go.
pub fn close(path: &Path) -> Result<()> {
    match umount2(path, MntFlags::MNT_DETACH) {
        // A crash between the file's making and its mount leaves a plain file.
        Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => {}
        Err(error) => return Err(error).file("unpin", path),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).file("remove", path),
        _ => Ok(()),
    }
}
