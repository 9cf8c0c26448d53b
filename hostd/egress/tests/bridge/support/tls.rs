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
