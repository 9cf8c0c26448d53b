//! Names to addresses, as the machine itself would resolve them. A static
//! PID 1 must not load the guest's resolver, so the machine's `getent` is asked.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, Read as _},
    net::IpAddr,
};

use crate::{
    error::{Context, Error, Result},
    exec,
    guest::Guest,
};

/// More than anyone's hosts file answers for one name.
const OUTPUT: u64 = 64 * 1024;

pub fn resolve(guest: &Guest, host: &str) -> Result<Vec<IpAddr>> {
    let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = literal.parse() {
        return Ok(vec![address]);
    }
    if host == "localhost" {
        return Ok(vec![[127, 0, 0, 1].into(), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)]);
    }
    if !is_name(host) {
        return Err(Error::new("resolve", host.escape_debug(), io::ErrorKind::InvalidInput.into()));
    }
    let (mut child, output) = exec::errand(guest, "/usr/bin/getent", &["ahosts", host])?;
    let mut text = String::new();
    File::from(output).take(OUTPUT).read_to_string(&mut text).during("resolve", host)?;
    child.outcome().during("resolve", host)?;
    let addresses = parse(&text);
    if addresses.is_empty() {
        let unknown = io::Error::new(io::ErrorKind::NotFound, "no such host");
        return Err(Error::new("resolve", host, unknown));
    }
    Ok(addresses)
}

/// What may stand on a command line and in the DNS.
fn is_name(host: &str) -> bool {
    (1..=255).contains(&host.len())
        && !host.starts_with('-')
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

/// `getent ahosts` prints each address once per socket type.
fn parse(text: &str) -> Vec<IpAddr> {
    let mut seen = HashSet::new();
    text.lines()
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .filter(|address| seen.insert(*address))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_getent() {
        let text = "192.0.2.1     STREAM example.org\n192.0.2.1     DGRAM\n2001:db8::1   STREAM\nrubbish\n";
        let expected: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn only_names_are_asked_for() {
        for good in ["db", "a.b-c_d.example.org"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-s", "a b", "a;b", "é", &"x".repeat(256)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
