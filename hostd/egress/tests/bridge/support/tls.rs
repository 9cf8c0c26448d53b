//! TLS of a client in the guest.

use super::world::World;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::sync::Arc;

/// Trusts the bridge's authority and the world's, and these in PEM.
pub fn client(world: &World, alpn: &[u8], more: &[&str]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(world.public.der()).unwrap();
    for pem in more.iter().copied().chain([world.settings.authority_certificate.as_str()]) {
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    config
}

/// A ClientHello of TLS 1.2 by hand, with a server name and further extensions.
pub fn hello(name: Option<&str>, further: &[Vec<u8>]) -> Vec<u8> {
    const GROUPS: &[u8] = &[0, 10, 0, 6, 0, 4, 0, 0x1d, 0, 0x17];
    const SIGNATURES: &[u8] = &[0, 13, 0, 6, 0, 4, 4, 3, 8, 4];
    let mut extensions = [GROUPS, SIGNATURES].concat();
    extensions.extend(name.map(server_name).into_iter().flatten());
    extensions.extend(further.iter().flatten());
    let length = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
    let mut body = vec![3; 34];
    // No session; two ciphers; no compression.
    body.extend([0, 0, 4, 0xc0, 0x2b, 0xc0, 0x2f, 1, 0]);
    body.extend(length(extensions.len()));
    body.extend(extensions);
    [&[22, 3, 1][..], &length(body.len() + 4), &[1, 0], &length(body.len()), &body].concat()
}

/// The extension with one name, as RFC 6066 has it.
pub fn server_name(name: &str) -> Vec<u8> {
    let length = |extra: usize| u16::try_from(name.len() + extra).unwrap().to_be_bytes();
    [&[0, 0][..], &length(5), &length(3), &[0], &length(0), name.as_bytes()].concat()
}
