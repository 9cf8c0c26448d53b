//! What is done to a log, and that it is noticed.

use super::*;
use berth_types::{AuditEntry, AuditEvent, UserId};
use ed25519_dalek::SigningKey;
use jiff::Timestamp;
use std::{
    fs,
    path::{Path, PathBuf},
};

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("berth-audit-{}", UserId::random())))
    }

    fn open(&self, bytes: u64, keep: usize) -> Log {
        Log::open(&self.0, Rotation { bytes, keep }, key()).unwrap()
    }

    fn verify(&self) -> Report {
        verify(&self.0, &read_public_key(&self.0).unwrap()).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
        files.sort();
        files
    }

    fn edit(&self, edit: impl FnOnce(&mut Vec<String>)) {
        let path = &self.files()[0];
        let mut lines: Vec<String> = fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
        edit(&mut lines);
        fs::write(path, lines.join("\n") + "\n").unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn verb(user: Option<&UserId>, detail: &str) -> AuditEvent {
    AuditEvent::Verb {
        user: user.cloned(),
        verb: "new".into(),
        machine: Some("dev".parse().unwrap()),
        detail: detail.into(),
        outcome: "done".into(),
    }
}

fn write(log: &mut Log, count: usize) {
    for number in 0..count {
        log.append(Timestamp::now(), verb(None, &format!("number {number}"))).unwrap();
    }
}

#[test]
fn a_log_that_nobody_touched_verifies_over_restarts() {
    let scratch = Scratch::new();
    write(&mut scratch.open(1 << 20, 3), 10);
    let mut log = scratch.open(1 << 20, 3);
    write(&mut log, 600);
    log.checkpoint().unwrap();
    let report = scratch.verify();
    assert_eq!(report.problems, []);
    assert_eq!((report.entries, report.checkpoints, report.unsigned), (613, 3, 0));
}

#[test]
fn every_kind_of_meddling_is_found() {
    type Edit = fn(&mut Vec<String>);
    let edits: [(&str, Edit); 7] = [
        ("changed", |lines| lines[3] = lines[3].replace("number 3", "number 4")),
        ("left out", |lines| drop(lines.remove(4))),
        ("moved", |lines| lines.swap(4, 5)),
        ("doubled", |lines| lines.insert(4, lines[4].clone())),
        ("not JSON", |lines| lines[2] = "nothing".into()),
        ("cut off", |lines| lines.truncate(8)),
        ("the first left out", |lines| drop(lines.remove(0))),
    ];
    for (what, edit) in edits {
        let scratch = Scratch::new();
        let mut log = scratch.open(1 << 20, 3);
        write(&mut log, 10);
        log.checkpoint().unwrap();
        drop(log);
        assert_eq!(scratch.verify().problems, [], "{what}");
        scratch.edit(edit);
        assert_ne!(scratch.verify().problems, [], "{what}");
        // It goes on all the same, and what was done to it stays visible.
        write(&mut scratch.open(1 << 20, 3), 3);
        assert_ne!(scratch.verify().problems, [], "{what}");
    }
}

#[test]
fn a_history_that_somebody_else_wrote_is_not_believed() {
    let scratch = Scratch::new();
    let forged = SigningKey::from_bytes(&[8; 32]);
    let mut log = Log::open(&scratch.0, Rotation { bytes: 1 << 20, keep: 3 }, forged).unwrap();
    write(&mut log, 5);
    log.checkpoint().unwrap();
    let report = verify(&scratch.0, &key().verifying_key()).unwrap();
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert_eq!(report.checkpoints, 0);
}

#[test]
fn full_files_are_put_aside_and_only_so_many_are_kept() {
    let scratch = Scratch::new();
    let mut log = scratch.open(2_000, 3);
    write(&mut log, 100);
    log.checkpoint().unwrap();
    assert_eq!(scratch.files().len(), 3);
    assert_eq!(scratch.verify().problems, []);
    fs::remove_file(&scratch.files()[1]).unwrap();
    assert_ne!(scratch.verify().problems, []);
}

#[test]
fn an_old_file_that_was_not_due_to_go_is_missed() {
    let scratch = Scratch::new();
    let mut log = scratch.open(2_000, 100);
    write(&mut log, 100);
    log.checkpoint().unwrap();
    fs::remove_file(&scratch.files()[0]).unwrap();
    assert_ne!(scratch.verify().problems, []);
}

#[test]
fn a_torn_line_is_taken_away_and_recorded() {
    for cut in [1, 20, 60] {
        let scratch = Scratch::new();
        write(&mut scratch.open(1 << 20, 3), 5);
        let path = scratch.files()[0].clone();
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        let report = scratch.verify();
        assert_eq!((report.problems.len(), report.torn_bytes > 0), (0, true), "{cut}");
        let mut log = scratch.open(1 << 20, 3);
        write(&mut log, 1);
        log.checkpoint().unwrap();
        assert_eq!(scratch.verify().problems, [], "{cut}");
        let all = query(&scratch.0, &Query { most: 100, ..Query::default() }).unwrap();
        assert!(all.iter().any(|entry| matches!(entry.event, AuditEvent::Recovered { .. })));
    }
}

#[test]
fn killed_before_the_first_line_of_a_new_file() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1 << 20, 3);
    write(&mut log, 5);
    log.checkpoint().unwrap();
    drop(log);
    fs::write(scratch.0.join("0000000002.jsonl"), "").unwrap();
    write(&mut scratch.open(1 << 20, 3), 5);
    assert_eq!(scratch.verify().problems, []);
}

#[test]
fn users_read_what_is_theirs() {
    let scratch = Scratch::new();
    let (ann, bob) = (UserId::random(), UserId::random());
    let mut log = scratch.open(1_000, 100);
    for number in 0..50 {
        let user = if number % 2 == 0 { &ann } else { &bob };
        log.append(Timestamp::now(), verb(Some(user), &number.to_string())).unwrap();
    }
    log.append(Timestamp::now(), AuditEvent::Refused { fingerprint: "SHA256:x".into() }).unwrap();
    let read = |query: Query| super::query(&scratch.0, &query).unwrap();
    let all = read(Query { user: Some(ann.clone()), most: 100, ..Query::default() });
    assert_eq!(all.len(), 25);
    assert!(all.is_sorted_by_key(|entry: &AuditEntry| entry.seq));
    let last = read(Query { user: Some(ann.clone()), most: 3, ..Query::default() });
    assert_eq!(last.last(), all.last());
    let nothing =
        Query { user: Some(ann), machine: Some("other".parse().unwrap()), most: 9, ..Query::default() };
    assert_eq!(read(nothing), []);
    let later = Timestamp::now() + std::time::Duration::from_secs(60);
    assert_eq!(read(Query { since: Some(later), most: 9, ..Query::default() }), []);
    assert_eq!(read(Query { egress: true, most: 9, ..Query::default() }), []);
}

#[tokio::test]
async fn what_is_settled_is_on_disk_and_signed() {
    let scratch = Scratch::new();
    let recorder = Recorder::start(scratch.open(1 << 20, 3));
    for number in 0..1_000 {
        recorder.record(verb(None, &number.to_string())).await;
    }
    recorder.settle().await;
    let report = scratch.verify();
    assert_eq!((report.problems.as_slice(), report.unsigned), (&[][..], 0));
    assert!(report.entries > 1_000);
    assert!(Path::new(&scratch.0).join("head").exists());
}
