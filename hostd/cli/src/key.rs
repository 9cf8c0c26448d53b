//! Public keys as people have them in files: `ssh-ed25519 AAAA… comment`.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use berth_types::SshKey;
use sha2::{Digest, Sha256};

/// What the gateway lets log in.
const ALGORITHMS: &[&str] = &[
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidKey {
    #[error("there is no key in it")]
    Empty,
    #[error("there is more than one key in it")]
    Several,
    #[error("it is a private key")]
    Private,
    #[error("it is no public key of a kind that can log in")]
    Algorithm,
    #[error("the key is damaged")]
    Damaged,
}

/// The one key in a file's text.
pub fn parse(text: &str) -> Result<SshKey, InvalidKey> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let line = lines.next().ok_or(InvalidKey::Empty)?;
    if line.starts_with("-----BEGIN") {
        return Err(InvalidKey::Private);
    }
    if lines.next().is_some() {
        return Err(InvalidKey::Several);
    }
    let mut words = line.split_whitespace();
    let algorithm = words.next().filter(|word| ALGORITHMS.contains(word)).ok_or(InvalidKey::Algorithm)?;
    let encoded = words.next().ok_or(InvalidKey::Damaged)?;
    let blob = STANDARD.decode(encoded).map_err(|_| InvalidKey::Damaged)?;
    // The blob begins with the algorithm's name; another one there is a key cut and pasted wrongly.
    let named = blob.first_chunk::<4>().map(|length| u32::from_be_bytes(*length) as usize);
    if named != Some(algorithm.len()) || blob.get(4..4 + algorithm.len()) != Some(algorithm.as_bytes()) {
        return Err(InvalidKey::Damaged);
    }
    if blob.len() <= algorithm.len() + 8 {
        return Err(InvalidKey::Damaged);
    }
    let fingerprint = format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(&blob)));
    let comment = words.collect::<Vec<_>>().join(" ");
    Ok(SshKey::new(fingerprint, format!("{algorithm} {encoded}"), comment))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f ann@laptop";

    #[test]
    fn a_key_is_read_with_its_comment() {
        let key = parse(&format!("# mine\n\n{KEY}\n")).unwrap();
        assert_eq!(key.comment, "ann@laptop");
        assert_eq!(format!("{} {}", key.public, key.comment), KEY);
        // As `ssh-keygen -l` prints it.
        assert_eq!(key.fingerprint, FINGERPRINT);
    }

    const FINGERPRINT: &str = "SHA256:ZkAslGjFiUHdGf/WUL8rQvkib4PTvQatUV0OUQSncCA";

    #[test]
    fn what_is_no_key_says_what_it_is() {
        for (text, why) in [
            ("", InvalidKey::Empty),
            ("# nothing\n", InvalidKey::Empty),
            ("-----BEGIN OPENSSH PRIVATE KEY-----\n", InvalidKey::Private),
            ("hello there", InvalidKey::Algorithm),
            ("ssh-dss AAAA", InvalidKey::Algorithm),
            ("ssh-ed25519", InvalidKey::Damaged),
            ("ssh-ed25519 !!!", InvalidKey::Damaged),
            ("ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8Q", InvalidKey::Damaged),
            ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5", InvalidKey::Damaged),
        ] {
            assert_eq!(parse(text).unwrap_err(), why, "{text}");
        }
        assert_eq!(parse(&format!("{KEY}\n{KEY}\n")).unwrap_err(), InvalidKey::Several);
    }
}
