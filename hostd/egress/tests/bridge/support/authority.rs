//! Authorities of the test's own.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

pub struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: KeyPair,
    pub pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    pub fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    pub fn key_pem(&self) -> String {
        self.0.key().serialize_pem()
    }

    pub fn identity(&self, name: &str) -> Identity {
        self.issue(name, false)
    }

    pub fn issue(&self, name: &str, expired: bool) -> Identity {
        let mut params = params(name);
        if expired {
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity::new(&certificate, key)
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

impl Identity {
    fn new(certificate: &Certificate, key: KeyPair) -> Self {
        let pem = format!("{}{}", certificate.pem(), key.serialize_pem());
        Self { chain: vec![certificate.der().clone()], key, pem }
    }

    pub fn self_signed(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        Self::new(&params(name).self_signed(&key).unwrap(), key)
    }

    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }
}
