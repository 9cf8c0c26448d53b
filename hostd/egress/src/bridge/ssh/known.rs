//! Lines of known_hosts that came with a secret: the only servers believed.

use berth_types::egress::HostName;
use russh::keys::{
    Algorithm, PublicKey,
    ssh_key::known_hosts::{Entry, HostPatterns, Marker},
};

#[derive(Clone, Debug)]
pub struct KnownHosts(Vec<Entry>);

impl KnownHosts {
    /// Only what can be checked: no hashed names, no authorities.
    pub fn parse(lines: &[String]) -> Result<Self, String> {
        let mut entries = Vec::new();
        for line in
            lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let entry: Entry = line.parse().map_err(|_| "a line of known_hosts cannot be read")?;
            if matches!(entry.host_patterns(), HostPatterns::HashedName { .. }) {
                return Err("known_hosts must have plain names, not hashed ones".to_owned());
            }
            if matches!(entry.marker(), Some(Marker::CertAuthority)) {
                return Err("known_hosts must have the hosts' own keys, not an authority's".to_owned());
            }
            entries.push(entry);
        }
        if entries.is_empty() { Err("known_hosts has no line".to_owned()) } else { Ok(Self(entries)) }
    }

    fn about<'a>(&'a self, name: &HostName, port: u16) -> impl Iterator<Item = &'a Entry> {
        let name = if port == 22 { name.to_string() } else { format!("[{name}]:{port}") };
        self.0.iter().filter(move |entry| match entry.host_patterns() {
            HostPatterns::Patterns(patterns) => {
                patterns.iter().any(|pattern| pattern.eq_ignore_ascii_case(&name))
            }
            HostPatterns::HashedName { .. } => false,
        })
    }

    pub fn knows(&self, name: &HostName, port: u16, key: &PublicKey) -> bool {
        let same = |entry: &&Entry| entry.public_key().key_data() == key.key_data();
        let mut matching = self.about(name, port).filter(same).peekable();
        matching.peek().is_some() && matching.all(|entry| entry.marker().is_none())
    }

    /// What to ask the server for: it may have other keys as well.
    pub fn algorithms(&self, name: &HostName, port: u16) -> Vec<Algorithm> {
        self.about(name, port).flat_map(|entry| offers(entry.public_key().algorithm())).collect()
    }
}

/// An RSA key signs in several ways, of which the oldest is not taken.
fn offers(algorithm: Algorithm) -> Vec<Algorithm> {
    use russh::keys::HashAlg::{Sha256, Sha512};
    match algorithm {
        Algorithm::Rsa { .. } => {
            vec![Algorithm::Rsa { hash: Some(Sha512) }, Algorithm::Rsa { hash: Some(Sha256) }]
        }
        other => vec![other],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::ssh::host_key;

    #[test]
    fn a_host_is_known_by_name_port_and_key() {
        let (key, other) = (host_key("a").public_key().clone(), host_key("b").public_key().clone());
        let text = key.to_openssh().unwrap();
        let known = |lines: &[String]| KnownHosts::parse(lines).unwrap();
        let name: HostName = "git.example".parse().unwrap();
        let plain = known(&[format!("git.example,192.0.2.1 {text}")]);
        assert!(plain.knows(&name, 22, &key));
        assert!(!plain.knows(&name, 22, &other));
        assert!(!plain.knows(&name, 2222, &key));
        assert!(!plain.knows(&"evil.example".parse().unwrap(), 22, &key));
        assert!(known(&[format!("[git.example]:2222 {text}")]).knows(&name, 2222, &key));
        let revoked = known(&[format!("git.example {text}"), format!("@revoked git.example {text}")]);
        assert!(!revoked.knows(&name, 22, &key));
        assert_eq!(plain.algorithms(&name, 22), [Algorithm::Ed25519]);
        for bad in
            ["", "nonsense", "|1|c2FsdHNhbHRzYWx0c2FsdHNhbHQ=|aGFzaGhhc2hoYXNoaGFzaGhhc2g= ssh-ed25519 AAAA"]
        {
            assert!(KnownHosts::parse(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
