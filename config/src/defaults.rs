//! What keys mean that a file of an earlier release does not have.

use berth_types::{ByteSize, Span};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{Ipv4Addr, Ipv6Addr};

pub const fn penalty_max() -> Span {
    Span::seconds(600)
}

/// The host itself: its own checks connect without logging in.
pub fn trusted_addresses() -> Vec<IpNet> {
    let loopback = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
    vec![loopback.into(), Ipv6Net::from(Ipv6Addr::LOCALHOST).into()]
}

pub const fn connections_per_user() -> u32 {
    100
}

pub const fn channels_per_user() -> u32 {
    2000
}

pub const fn queue_per_user() -> ByteSize {
    ByteSize::mib(128)
}

pub const fn queue_max() -> ByteSize {
    ByteSize::mib(512)
}

pub const fn registration_per_hour() -> u32 {
    600
}

pub const fn registration_per_address() -> u32 {
    20
}

pub const fn users_max() -> u32 {
    10_000
}
