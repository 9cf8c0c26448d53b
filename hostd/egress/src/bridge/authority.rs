//! The installation's authority, and the leaves by which TLS is opened.
//!
//! The leaf key is made anew with each process and is never the authority's.

use crate::bridge::{host::SettingsError, sni::Http, upstream};
use berth_types::egress::HostName;
use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    CipherSuite, ServerConfig, SupportedCipherSuite,
    crypto::CryptoProvider,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Against guests whose clock is behind.
const BACKDATED: i64 = 7;
/// Short, for none is ever revoked; a bridge that runs for longer makes new ones.
const VALID: i64 = 7;
/// Long before a leaf ends.
const CACHED: Duration = Duration::from_secs(24 * 3600);
const MAX_LEAVES: usize = 1024;

/// As ever, but with the cheapest first. Most programs would rather have AES-256, whose
/// hash has no instructions of its own on many processors; what is between a machine
/// and its own host needs no more than AES-128.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    let mut provider = CryptoProvider::clone(&upstream::provider());
    let last = |suite: &SupportedCipherSuite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(last);
    Arc::new(provider)
});

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    leaf_key: KeyPair,
    leaves: Mutex<HashMap<HostName, Leaf>>,
}

#[derive(Clone)]
struct Leaf {
    one: Arc<ServerConfig>,
    two: Arc<ServerConfig>,
    made: Instant,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    pub fn new(certificate: &str, key: &str) -> Result<Self, SettingsError> {
        let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
        Ok(Self { issuer, leaf_key: KeyPair::generate()?, leaves: Mutex::default() })
    }

    /// How to be this host towards a guest, by the protocol its server speaks.
    pub fn server(&self, name: &HostName, http: Http) -> Result<Arc<ServerConfig>, SettingsError> {
        let pick = |leaf: &Leaf| match http {
            Http::One => leaf.one.clone(),
            Http::Two => leaf.two.clone(),
        };
        let lock = || self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = lock().get(name).filter(|leaf| leaf.made.elapsed() < CACHED) {
            return Ok(pick(leaf));
        }
        let leaf = self.make(name)?;
        let config = pick(&leaf);
        let mut leaves = lock();
        if leaves.len() >= MAX_LEAVES {
            leaves.clear();
        }
        leaves.insert(name.clone(), leaf);
        Ok(config)
    }

    fn make(&self, name: &HostName) -> Result<Leaf, SettingsError> {
        let mut params = CertificateParams::new([name.to_string()])?;
        // Longer ones do not fit; clients go by the alternative name anyway.
        let common = name.as_str().get(..64).unwrap_or(name.as_str());
        params.distinguished_name.push(DnType::CommonName, common);
        params.use_authority_key_identifier_extension = true;
        params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
        let midnight = |date: Date| {
            let part = |number: i8| u8::try_from(number).unwrap_or(1);
            date_time_ymd(i32::from(date.year()), part(date.month()), part(date.day()))
        };
        params.not_before = midnight(today.saturating_sub(BACKDATED.days()));
        params.not_after = midnight(today.saturating_add(VALID.days()));
        let leaf = params.signed_by(&self.leaf_key, &self.issuer)?;
        // The authority itself is what the guest has; to send it along would tell nothing.
        let chain = vec![leaf.der().clone()];
        let config = |http: Http| {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
            let mut config = ServerConfig::builder_with_provider(PROVIDER.clone())
                .with_safe_default_protocol_versions()
                .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain.clone(), key))
                .map_err(|error| SettingsError::Tls(error.to_string()))?;
            config.alpn_protocols = vec![http.alpn().to_vec()];
            config.ignore_client_order = true;
            // Resumption would need a memory of sessions for each guest.
            config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            Ok::<_, SettingsError>(Arc::new(config))
        };
        Ok(Leaf { one: config(Http::One)?, two: config(Http::Two)?, made: Instant::now() })
    }
}
