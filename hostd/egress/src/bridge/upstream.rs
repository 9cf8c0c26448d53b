//! TLS towards servers: whom the host trusts, and as whom it appears.

use crate::bridge::{host::SettingsError, sni::Http};
use rustls::{
    ClientConfig, RootCertStore,
    client::WebPkiServerVerifier,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::{CertifiedKey, SingleCertAndKey},
};
use std::{
    fmt,
    sync::{Arc, LazyLock},
};

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));

pub fn provider() -> Arc<CryptoProvider> {
    PROVIDER.clone()
}

/// The certificates of a PEM text, if it is one.
pub fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()
}

/// A client's certificate chain and key, from one PEM text.
pub fn identity(pem: &[u8]) -> Result<CertifiedKey, String> {
    let chain = certificates(pem).filter(|chain| !chain.is_empty()).ok_or("no certificate in PEM")?;
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| "no private key in PEM")?;
    CertifiedKey::from_der(chain, key, &PROVIDER)
        .map_err(|error| format!("the certificate and the key cannot be used: {error}"))
}

/// Those that the host trusts, as they were when the process began.
static NATIVE_ROOTS: LazyLock<Vec<CertificateDer<'static>>> = LazyLock::new(|| {
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::warn!(%error, "a certificate that the host trusts cannot be read");
    }
    native.certs
});

/// While there are files to read: later none is opened.
pub fn load_native_roots() {
    LazyLock::force(&NATIVE_ROOTS);
}

pub struct Trust {
    /// Without a client's certificate, by what is offered.
    plain: [Arc<ClientConfig>; 4],
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}

impl Trust {
    pub fn new(extra: &str) -> Result<Self, SettingsError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(NATIVE_ROOTS.iter().cloned());
        for root in certificates(extra.as_bytes()).ok_or(SettingsError::Roots)? {
            roots.add(root).map_err(|_| SettingsError::Roots)?;
        }
        let tls = |error: &dyn fmt::Display| SettingsError::Tls(error.to_string());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| tls(&error))?;
        let build = |offer: &[Http]| {
            let builder = ClientConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .map_err(|error| tls(&error))?
                .with_webpki_verifier(verifier.clone());
            let mut config = builder.with_no_client_auth();
            config.alpn_protocols = offer.iter().map(|http| http.alpn().to_vec()).collect();
            Ok::<_, SettingsError>(Arc::new(config))
        };
        let plain =
            [build(&[])?, build(&[Http::One])?, build(&[Http::Two])?, build(&[Http::Two, Http::One])?];
        Ok(Self { plain })
    }

    /// How to speak to a server. Sessions are never resumed under a certificate.
    pub fn client(&self, offer: &[Http], identity: Option<Arc<CertifiedKey>>) -> Arc<ClientConfig> {
        let has = |http| offer.contains(&http);
        let [none, one, two, both] = &self.plain;
        let plain = match (has(Http::One), has(Http::Two)) {
            (false, false) => none,
            (true, false) => one,
            (false, true) => two,
            (true, true) => both,
        };
        let Some(identity) = identity else { return plain.clone() };
        let mut config = ClientConfig::clone(plain);
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(identity));
        config.resumption = rustls::client::Resumption::disabled();
        Arc::new(config)
    }
}
