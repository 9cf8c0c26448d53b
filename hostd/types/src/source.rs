//! Where a client comes from, as limits count it.

use std::net::{IpAddr, Ipv6Addr};

/// What counts as one address: a household has 2^64 IPv6 addresses.
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_household_is_one_source() {
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::2:3:4:5"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
