//! A user's keys.

use crate::host::Host;
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use berth_api::{Reply, Session};
use berth_types::{Code, Refusal, SshKey};
use sha2::{Digest, Sha256};

const LONGEST: usize = 16 << 10;

pub async fn add(host: &Host, session: &Session, key: SshKey) -> Result<Reply, Refusal> {
    let mut key = checked(key)?;
    key.added_by = Some(session.key.clone());
    key.added_from = Some(session.address);
    Ok(Reply::Key(host.registry.add_key(session, key).await?))
}

/// The gateway parsed the key, and may be lying: the fingerprint is that of the
/// key, and everything else is set here.
pub fn checked(key: SshKey) -> Result<SshKey, Refusal> {
    if fingerprint(&key.public).as_deref() != Some(key.fingerprint.as_str()) {
        return Err(Refusal::new(Code::Usage, "that is no public key", "paste one line of a .pub file"));
    }
    let comment = berth_types::text::plain(&key.comment, 80);
    Ok(SshKey::new(key.fingerprint, key.public, comment))
}

/// Of `ssh-ed25519 AAAA…`, as `ssh-keygen -l` prints it.
fn fingerprint(public: &str) -> Option<String> {
    if public.len() > LONGEST {
        return None;
    }
    let (algorithm, encoded) = public.split_once(' ')?;
    let blob = STANDARD.decode(encoded).ok()?;
    // The blob begins with the algorithm's name.
    let length = u32::from_be_bytes(*blob.first_chunk::<4>()?) as usize;
    let named = blob.get(4..)?.get(..length)?;
    let whole = blob.len() > length + 8 && named == algorithm.as_bytes() && algorithm.is_ascii();
    whole.then(|| format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(&blob))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f";
    const FINGERPRINT: &str = "SHA256:ZkAslGjFiUHdGf/WUL8rQvkib4PTvQatUV0OUQSncCA";

    #[test]
    fn a_fingerprint_that_is_not_the_keys_is_refused() {
        let key = |fingerprint: &str, public: &str| {
            checked(SshKey::new(fingerprint.to_owned(), public.to_owned(), "me\n".to_owned()))
        };
        assert_eq!(key(FINGERPRINT, PUBLIC).unwrap().comment, "me");
        let other = FINGERPRINT.replace("Zk", "Zz");
        let cut = &PUBLIC[..PUBLIC.len() - 4];
        let named = PUBLIC.replace("ssh-ed25519", "ssh-rsa");
        for (fingerprint, public) in [
            (other.as_str(), PUBLIC),
            ("SHA256:mallory", PUBLIC),
            (FINGERPRINT, cut),
            (FINGERPRINT, &named),
            (FINGERPRINT, "ssh-ed25519 mallory"),
            ("", ""),
        ] {
            assert!(key(fingerprint, public).is_err(), "{fingerprint} {public}");
        }
    }
}
