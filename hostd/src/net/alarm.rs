//! The alarm of a machine that rests: somebody sends it something.
//!
//! Connections into a guest outlive its sleep, for both ends keep their state.
//! When one of them sends, the packet waits in the tap's queue for the guest to
//! come back, and packet sockets that merely look on ring the alarm: one on the
//! host's link for sessions, one on the user's for what the machine itself has
//! asked the world and waits for.

use super::sockets::Sockets;
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};
use tokio::io::{Interest, unix::AsyncFd};

#[derive(Debug)]
pub struct Alarm {
    ctl: Option<AsyncFd<OwnedFd>>,
    eth: Option<AsyncFd<OwnedFd>>,
}

/// The kernel waits for a grace period when such a socket is closed, ten
/// milliseconds each, and whoever turns an alarm off is in a hurry.
impl Drop for Alarm {
    fn drop(&mut self) {
        let sockets = [self.ctl.take(), self.eth.take()];
        let sockets = sockets.map(|socket| socket.map(AsyncFd::into_inner));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(sockets));
        }
    }
}

impl Alarm {
    #[allow(unsafe_code)]
    pub async fn set(sockets: &Sockets, netns: Arc<OwnedFd>) -> io::Result<Self> {
        let (ctl, eth) = sockets.onlookers(netns).await?;
        // SAFETY: each AsyncFd owns its socket, which nobody else can close.
        let register = |socket| unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
        Ok(Self { ctl: Some(register(ctl)?), eth: Some(register(eth)?) })
    }

    /// Returns when something that a guest has to answer was sent.
    pub async fn rings(&self) -> io::Result<()> {
        tokio::select! {
            rung = called(self.ctl.as_ref()) => rung,
            rung = called(self.eth.as_ref()) => rung,
        }
    }
}

async fn called(onlooker: Option<&AsyncFd<OwnedFd>>) -> io::Result<()> {
    let Some(onlooker) = onlooker else { return std::future::pending().await };
    loop {
        let mut packet = [0u8; 128];
        let length = onlooker
            .async_io(Interest::READABLE, |socket| {
                Ok(nix::sys::socket::recv(
                    socket.as_raw_fd(),
                    &mut packet,
                    nix::sys::socket::MsgFlags::MSG_DONTWAIT | nix::sys::socket::MsgFlags::MSG_TRUNC,
                )?)
            })
            .await?;
        if calls(&packet, length) {
            return Ok(());
        }
    }
}

/// Does an IPv4 packet carry data or open a connection? The end of one is no
/// reason to wake anybody: it waits in the queue like everything else.
fn calls(packet: &[u8], length: usize) -> bool {
    let read = || {
        let words = usize::from(packet.first()? & 0x0f) * 4;
        if packet.first()? >> 4 != 4 || *packet.get(9)? != 6 {
            return None;
        }
        let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
        // Offloaded segments may be longer than their header says.
        let total = if total == 0 { length } else { total };
        let header = usize::from(packet.get(words + 12)? >> 4) * 4;
        let opens = packet.get(words + 13)? & 0x02 != 0;
        Some(opens || total > words + header)
    };
    read().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::calls;

    fn segment(flags: u8, data: usize) -> Vec<u8> {
        let mut packet = vec![0; 40 + data];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&u16::try_from(40 + data).unwrap().to_be_bytes());
        packet[9] = 6;
        packet[32] = 5 << 4;
        packet[33] = flags;
        packet
    }

    #[test]
    fn data_and_new_connections_ring_and_the_rest_does_not() {
        let (fin, syn, push, ack) = (1, 2, 8, 16);
        for (flags, data, rings) in
            [(syn, 0, true), (push | ack, 1, true), (ack, 0, false), (fin | ack, 0, false), (ack, 1000, true)]
        {
            let packet = segment(flags, data);
            let seen = &packet[..packet.len().min(128)];
            assert_eq!(calls(seen, packet.len()), rings, "{flags} {data}");
        }
        assert!(!calls(&[], 0));
        assert!(!calls(&[0x45; 12], 12));
    }
}
