//! What is written is read back, whatever its version; what is altered or newer is not.

use super::*;
use crate::tests::Scratch;
use berth_types::{Machine, Unknown};
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    name: String,
    #[serde(default)]
    size: u64,
    #[serde(flatten)]
    unknown: Unknown,
}

fn record(name: &str) -> Record {
    Record { name: name.into(), size: u64::MAX, unknown: Unknown::new() }
}

fn signer(scratch: &Scratch) -> Signer {
    Signer::open(scratch.path()).unwrap()
}

/// With one of its bytes, or a text in it, exchanged.
fn edited(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    text.replace(from, to).into_bytes()
}

#[test]
fn what_was_signed_is_believed_and_nothing_else_is() {
    let scratch = Scratch::new();
    let signer = signer(&scratch);
    let value = record("ann \"quoted\" \u{1F980} \\");
    let bytes = signer.sign(Kind::User, &value).unwrap();
    let read = |signer: &Signer, kind, bytes: &[u8]| signer.read::<Record>(kind, bytes);
    assert_eq!(read(&signer, Kind::User, &bytes), Ok(value.clone()));
    for kind in [Kind::Machine, Kind::Policies, Kind::Snapshot] {
        assert_eq!(read(&signer, kind, &bytes), Err(Unreadable::Unsigned), "of another kind");
    }
    assert_eq!(read(&signer, Kind::User, &edited(&bytes, "ann", "eve")), Err(Unreadable::Unsigned));
    for end in 0..bytes.len() {
        assert_eq!(read(&signer, Kind::User, &bytes[..end]), Err(Unreadable::Damaged), "cut off at {end}");
    }
    let other = Scratch::new();
    let stranger = Signer::open(other.path()).unwrap();
    assert_eq!(read(&stranger, Kind::User, &bytes), Err(Unreadable::Unsigned), "another installation's");
    // Bare ones until every mirror has been signed once, and never after.
    let bare = serde_json::to_vec(&value).unwrap();
    assert_eq!(read(&signer, Kind::User, &bare), Ok(value.clone()));
    signer.all_signed().unwrap();
    assert_eq!(read(&signer, Kind::User, &bare), Err(Unreadable::Unsigned));
    let next = Signer::open(scratch.path()).unwrap();
    assert_eq!(read(&next, Kind::User, &bare), Err(Unreadable::Unsigned), "after a restart");
    assert_eq!(read(&next, Kind::User, &bytes), Ok(value));
}

/// Any one byte exchanged for others: it is refused, or says what it said.
#[test]
fn no_altered_byte_changes_what_is_read() {
    let scratch = Scratch::new();
    let signer = signer(&scratch);
    signer.all_signed().unwrap();
    let value = record("ann");
    let bytes = signer.sign(Kind::User, &value).unwrap();
    let mut refused = 0;
    for at in 0..bytes.len() {
        let others = [bytes[at] ^ 1, bytes[at] ^ 0x20, b' ', b'"'];
        for byte in others.into_iter().filter(|byte| *byte != bytes[at]) {
            let mut altered = bytes.clone();
            altered[at] = byte;
            match signer.read::<Record>(Kind::User, &altered) {
                Ok(read) => assert_eq!(read, value, "{}", String::from_utf8_lossy(&altered)),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 3 * (bytes.len() - 40), "{refused} of {}", bytes.len());
}

#[test]
fn a_record_is_written_with_its_version_and_with_what_is_not_known_of_it() {
    let scratch = Scratch::new();
    let signer = signer(&scratch);
    let later = serde_json::json!({"name": "ann", "later": {"deep": [1, null]}, "size": 3});
    let read: Record = signer.read(Kind::User, &signer.sign(Kind::User, &later).unwrap()).unwrap();
    assert_eq!(read.unknown.len(), 1, "{read:?}");
    let again = signer.sign(Kind::User, &read).unwrap();
    let text = String::from_utf8(again.clone()).unwrap();
    assert!(text.starts_with("{\n  \"format_version\": 2,\n  \"signed\": {\"format_version\":2,"), "{text}");
    assert!(text.contains(r#""later":{"deep":[1,null]}"#), "{text}");
    assert_eq!(signer.read(Kind::User, &again), Ok(read.clone()));
    let text = encode("a record", &read).unwrap();
    assert_eq!(decode(text.as_bytes()), Ok(read));
    // One with fewer fields than this build has.
    let fewer = signer.sign(Kind::User, &serde_json::json!({"name": "ann"})).unwrap();
    assert_eq!(signer.read(Kind::User, &fewer), Ok(Record { size: 0, ..record("ann") }));
}

#[test]
fn a_version_that_is_not_known_is_named_whatever_else_there_is() {
    let scratch = Scratch::new();
    let signer = signer(&scratch);
    let read = |bytes: &[u8]| signer.read::<Record>(Kind::User, bytes).unwrap_err();
    let bytes = signer.sign(Kind::User, &record("ann")).unwrap();
    let inner = edited(&bytes, r#"{"format_version":2,"#, r#"{"format_version":3,"#);
    assert_eq!(read(&inner), Unreadable::Unsigned, "the version is signed");
    for newer in [
        edited(&bytes, r#""format_version": 2,"#, r#""format_version": 99,"#),
        br#"{"format_version": 99, "seal": "of another kind"}"#.to_vec(),
    ] {
        assert_eq!(read(&newer), Unreadable::Newer(99));
        assert!(unverified::<Record>(Kind::User, &newer).is_none());
    }
    let message = Unreadable::Newer(99).to_string();
    assert_eq!(message, "it has format version 99, which needs a newer berth: this one reads up to 2");
    for odd in ["\"2\"", "-1", "2.5", "null", "[]"] {
        let odd = edited(&bytes, r#""format_version": 2,"#, &format!(r#""format_version": {odd},"#));
        assert_eq!(read(&odd), Unreadable::Damaged);
    }
    let newer = br#"{"format_version":99,"name":7}"#;
    assert_eq!(check(newer), Err(Unreadable::Newer(99)));
    assert_eq!(decode::<Record>(newer), Err(Unreadable::Newer(99)));
}

#[test]
fn what_builds_before_versions_require_is_there_for_them() {
    #[derive(Deserialize)]
    struct Before {
        generation: u16,
        name: String,
    }
    let text = encode("a record", &record("ann")).unwrap();
    let before: Before = serde_json::from_str(&text).unwrap();
    assert_eq!((before.generation, before.name.as_str()), (1, "ann"));
    assert_eq!(decode(text.as_bytes()), Ok(record("ann")), "and is not among the unknown fields");
}

#[test]
fn what_a_file_says_can_be_shown_without_its_signature() {
    let scratch = Scratch::new();
    let bytes = signer(&scratch).sign(Kind::User, &record("ann")).unwrap();
    let forged = edited(&bytes, "ann", "eve");
    assert_eq!(unverified::<Record>(Kind::User, &forged).unwrap().name, "eve");
    assert!(unverified::<Machine>(Kind::Machine, &forged).is_none());
    assert!(unverified::<Record>(Kind::User, b"{").is_none());
}
