//! Files that commit f8cd9a1 itself has written, in `golden/`, with the key that signed them.
//! They show that the frozen writers write as it did, and that its signatures verify. The key
//! is no installation's: a test made it.

use super::{Scratch, frozen};
use crate::format::{Kind, Signer, Unreadable};
use berth_types::{Generation, Label, Machine, Why};
use ed25519_dalek::SigningKey;
use serde_json::Value;

const KEY: &str = include_str!("golden/key.hex");
const MANIFEST: &str = include_str!("golden/manifest.json");
const MACHINE: &str = include_str!("golden/machine.json");
const USER: &str = include_str!("golden/user.json");
const POLICIES: &str = include_str!("golden/policies.json");

fn key() -> [u8; 32] {
    let digit = |at: usize| u8::from_str_radix(&KEY[at * 2..at * 2 + 2], 16).unwrap();
    std::array::from_fn(digit)
}

fn signer(scratch: &Scratch) -> Signer {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let path = scratch.path().join("signing.key");
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.unwrap().write_all(&key()).unwrap();
    let signer = Signer::open(scratch.path()).unwrap();
    signer.all_signed().unwrap();
    signer
}

#[test]
fn what_f8cd9a1_signed_is_believed() {
    let scratch = Scratch::new();
    let signer = signer(&scratch);
    let generation: Generation = signer.read(Kind::Snapshot, MANIFEST.as_bytes()).unwrap();
    assert_eq!(generation.why, Why::Snapshot("before".parse::<Label>().unwrap()));
    assert!(generation.unknown.is_empty(), "{:?}", generation.unknown);
    let machine: Machine = signer.read(Kind::Machine, MACHINE.as_bytes()).unwrap();
    assert_eq!((machine.name.as_str(), machine.egress.unwrap().deny.len()), ("dev", 1));
    assert!(machine.unknown.is_empty(), "{:?}", machine.unknown);
    let user: Value = signer.read(Kind::User, USER.as_bytes()).unwrap();
    assert_eq!((&user["user"]["label"], user["keys"].as_array().unwrap().len()), (&"ann".into(), 2));
    let policies: Value = signer.read(Kind::Policies, POLICIES.as_bytes()).unwrap();
    assert_eq!(policies["policies"].as_array().unwrap().len(), 2);
    for (kind, text, from, to) in [
        (Kind::Snapshot, MANIFEST, "\"cpus\": 2", "\"cpus\": 3"),
        (Kind::Snapshot, MANIFEST, "\"before\"", "\"behind\""),
        (Kind::Machine, MACHINE, "dev", "eve"),
        (Kind::User, USER, "ann", "eve"),
        (Kind::Policies, POLICIES, "evil.example", "good.example"),
    ] {
        let altered = text.replace(from, to);
        assert_ne!(altered, text, "{from}");
        let read = signer.read::<Value>(kind, altered.as_bytes());
        assert_eq!(read, Err(Unreadable::Unsigned), "{from}");
    }
}

#[test]
fn the_frozen_writers_write_the_same_bytes() {
    let key = SigningKey::from_bytes(&key());
    let manifest: Value = serde_json::from_str(MANIFEST).unwrap();
    let generation: frozen::Generation = serde_json::from_value(manifest["generation"].clone()).unwrap();
    assert_eq!(String::from_utf8(frozen::manifest(&key, &generation)).unwrap(), MANIFEST);
    let text = |file: &str| serde_json::from_str::<Value>(file).unwrap()["text"].as_str().unwrap().to_owned();
    let machine: frozen::Machine = serde_json::from_str(&text(MACHINE)).unwrap();
    assert_eq!(String::from_utf8(frozen::mirror(&key, "a machine", &machine)).unwrap(), MACHINE);
    let user: frozen::UserMirror = serde_json::from_str(&text(USER)).unwrap();
    assert_eq!(String::from_utf8(frozen::mirror(&key, "a user", &user)).unwrap(), USER);
    let policies: Vec<frozen::PolicyRecord> = serde_json::from_str(&text(POLICIES)).unwrap();
    assert_eq!(String::from_utf8(frozen::mirror(&key, "policies", &policies)).unwrap(), POLICIES);
}
