//! Keys: which kinds are taken, how they are written down.

use berth_types::{Code, Refusal, SshKey};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PublicKey};

/// Key types for login, in the order of preference; SHA-1 signatures are not
/// among them.
pub const ALGORITHMS: &[Algorithm] = &[
    Algorithm::Ed25519,
    Algorithm::SkEd25519,
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
    Algorithm::SkEcdsaSha2NistP256,
    Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
    Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
];

/// Shorter ones can be broken.
const RSA_BITS_MIN: usize = 2048;

/// May this key log in, with a signature of this kind?
pub fn acceptable(key: &PublicKey, signature: &Algorithm) -> bool {
    let strong = match key.key_data().rsa() {
        Some(rsa) => rsa_bits(rsa.n().as_positive_bytes()) >= RSA_BITS_MIN,
        None => true,
    };
    strong && ALGORITHMS.contains(signature)
}

fn rsa_bits(modulus: Option<&[u8]>) -> usize {
    let bytes = modulus.unwrap_or_default();
    let first = bytes.first().copied().unwrap_or_default();
    (bytes.len() * 8).saturating_sub(first.leading_zeros() as usize)
}

pub fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

/// The key as hostd keeps it.
pub fn record(key: &PublicKey) -> Result<SshKey, Refusal> {
    let mut plain = key.clone();
    plain.set_comment("");
    let public = plain.to_openssh().map_err(|_| no_key("that key has no text form"))?;
    let comment = tidy(key.comment().as_str_lossy());
    Ok(SshKey::new(fingerprint(key), public.trim_end().to_owned(), comment))
}

/// A line of an `id_….pub` file.
pub fn read_key(text: &str) -> Result<SshKey, Refusal> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let Some(line) = line else { return Err(no_key("there is no key")) };
    if line.contains("PRIVATE KEY") {
        return Err(Refusal::new(
            Code::Usage,
            "that is a private key",
            "keep it secret and send the .pub file",
        ));
    }
    let key = PublicKey::from_openssh(line).map_err(|_| no_key("that is no public key"))?;
    let algorithm = match key.algorithm() {
        Algorithm::Rsa { .. } => Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
        other => other,
    };
    if !acceptable(&key, &algorithm) {
        return Err(no_key("that kind of key is not taken here"));
    }
    record(&key)
}

fn no_key(message: &str) -> Refusal {
    Refusal::new(Code::Usage, message, "send one line like 'ssh-ed25519 AAAA… me@laptop'")
}

fn tidy(comment: &str) -> String {
    comment.chars().filter(|character| !crate::ui::text::unsafe_to_show(*character)).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti me@laptop";

    #[test]
    fn a_pub_file_is_read() {
        let key = read_key(&format!("\n# mine\n{KEY}\n")).unwrap();
        assert_eq!(key.comment, "me@laptop");
        assert!(KEY.starts_with(&key.public) && !key.public.ends_with(' '));
        assert!(key.fingerprint.starts_with("SHA256:"));
    }

    #[test]
    fn other_text_is_refused_in_one_line() {
        for (text, message) in [
            ("", "there is no key"),
            ("hello", "that is no public key"),
            ("-----BEGIN OPENSSH PRIVATE KEY-----", "that is a private key"),
        ] {
            let refusal = read_key(text).unwrap_err();
            assert_eq!((refusal.code, refusal.message.as_str()), (Code::Usage, message));
        }
    }
}
