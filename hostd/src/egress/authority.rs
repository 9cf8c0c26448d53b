//! The installation's own authority: machines trust it, and nobody else does.
//!
//! The bridge certifies with it the hosts that a secret goes to, so that it can
//! put the secret in. Its key never leaves the host.

use crate::{
    error::{FileContext, Result},
    keyfile,
};
use berth_guest_protocol::AUTHORITY_NAME;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use std::{fmt, fs, io, path::Path};
use zeroize::Zeroizing;

#[derive(Clone)]
pub struct Authority {
    /// In PEM, both.
    pub certificate: String,
    pub key: Zeroizing<String>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    /// Made on the first start.
    pub fn open(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).file("create", directory)?;
        let path = directory.join("authority.key");
        let made = keyfile::load_or_make(&path, || {
            let key = KeyPair::generate().map_err(io::Error::other)?;
            Ok(Zeroizing::new(key.serialize_pem().into_bytes()))
        })?;
        let key = String::from_utf8(made.to_vec()).map_err(io::Error::other).file("use", &path)?;
        let key = Zeroizing::new(key);
        let path = directory.join("authority.pem");
        let certificate = match fs::read_to_string(&path) {
            Ok(certificate) => certificate,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let certificate = certify(&KeyPair::from_pem(&key)?)?;
                crate::storage::replace(&path, certificate.as_bytes())?;
                certificate
            }
            Err(error) => return Err(error).file("read", &path),
        };
        Ok(Self { certificate, key })
    }
}

/// For hosts only: nothing below it may certify anything.
fn certify(key: &KeyPair) -> Result<String> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // Guests' clocks may be behind when they look at it first.
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2049, 12, 31);
    Ok(params.self_signed(key)?.pem())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn it_is_made_once_and_guests_find_it_by_its_hash() {
        let directory =
            std::env::temp_dir().join(format!("berth-authority-{}", berth_types::UserId::random()));
        let first = Authority::open(&directory).unwrap();
        let second = Authority::open(&directory).unwrap();
        assert_eq!((first.certificate, first.key), (second.certificate, second.key));
        let path = directory.join("authority.pem");
        let hash =
            Command::new("openssl").args(["x509", "-noout", "-hash", "-in"]).arg(path).output().unwrap();
        assert_eq!(String::from_utf8(hash.stdout).unwrap().trim(), berth_guest_protocol::AUTHORITY_HASH);
        fs::remove_dir_all(directory).unwrap();
    }
}
