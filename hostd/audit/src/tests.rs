//! What is done to a log, and that it is noticed.

mod flood;

use super::*;
use berth_types::{AuditEntry, AuditEvent, EgressEntry, UserId};
use ed25519_dalek::SigningKey;
use jiff::Timestamp;
use std::{fs, path::PathBuf, time::Duration};

const DAY: Duration = Duration::from_secs(24 * 3600);

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("berth-audit-{}", UserId::random())))
    }

    fn open(&self, bytes: u64, keep: usize) -> Log {
        let log = self.open_one(Series::Deeds, bytes, keep, Duration::ZERO);
        if self.files_of(Series::Egress).is_empty() {
            // As the recorder begins both.
            let mut egress = self.open_one(Series::Egress, bytes, keep, Duration::ZERO);
            egress.append(Timestamp::now(), AuditEvent::Started { version: "1".into() }).unwrap();
            egress.checkpoint().unwrap();
        }
        log
    }

    fn open_one(&self, series: Series, bytes: u64, keep: usize, keep_for: Duration) -> Log {
        Log::open(&self.0, series, Rotation { bytes, keep, keep_for }, key()).unwrap()
    }

    fn recorder(&self, bytes: u64, keep: usize) -> Recorder {
        let log = |series| self.open_one(series, bytes, keep, Duration::ZERO);
        Recorder::start(log(Series::Deeds), log(Series::Egress))
    }

    fn verify(&self) -> Report {
        self.verify_with(&[])
    }

    fn verify_with(&self, kept: &[Head]) -> Report {
        verify(&self.0, &read_public_key(&self.0).unwrap(), kept).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files_of(Series::Deeds)
    }

    fn files_of(&self, series: Series) -> Vec<PathBuf> {
        series.list(&self.0).unwrap().into_iter().map(|number| series.path(&self.0, number)).collect()
    }

    fn all(&self) -> Vec<AuditEntry> {
        query(&self.0, &Query { most: usize::MAX, ..Query::default() }).unwrap()
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
    // Two of them are the other log's.
    assert_eq!((report.entries, report.checkpoints, report.unsigned), (615, 4, 0));
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
    let rotation = Rotation { bytes: 1 << 20, keep: 3, keep_for: Duration::ZERO };
    let mut log = Log::open(&scratch.0, Series::Deeds, rotation, forged).unwrap();
    write(&mut log, 5);
    log.checkpoint().unwrap();
    let report = verify(&scratch.0, &key().verifying_key(), &[]).unwrap();
    assert_eq!(report.problems.len(), 2, "its checkpoint and its head: {report:?}");
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
    log.append(
        Timestamp::now(),
        AuditEvent::Refused { fingerprint: "SHA256:x".into(), address: None, reason: String::new() },
    )
    .unwrap();
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
    let recorder = scratch.recorder(1 << 20, 3);
    for number in 0..1_000 {
        recorder.record(verb(None, &number.to_string())).await;
    }
    recorder.settle().await;
    let report = scratch.verify();
    assert_eq!((report.problems.as_slice(), report.unsigned), (&[][..], 0));
    assert!(report.entries > 1_000);
    assert!(scratch.0.join("head").exists());
}

/// The review's attack on the end: everything since a checkpoint, and the head made to fit.
#[test]
fn a_cut_tail_is_found_though_the_head_was_rewritten() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1 << 20, 3);
    write(&mut log, 5);
    log.checkpoint().unwrap();
    let kept = read_head_file(&scratch.0.join("head")).unwrap();
    write(&mut log, 5);
    log.checkpoint().unwrap();
    assert_eq!(scratch.verify_with(std::slice::from_ref(&kept)).problems, []);
    let whole = fs::read_to_string(&scratch.files()[0]).unwrap();
    scratch.edit(|lines| lines.truncate(6));
    for head in [
        format!(r#"{{"seq":5,"hash":"{}"}}"#, kept.hash),
        format!(
            r#"{{"seq":5,"hash":"{}","time":"2026-01-01T00:00:00Z","signature":"{}"}}"#,
            kept.hash, kept.signature
        ),
    ] {
        fs::write(scratch.0.join("head"), head).unwrap();
        let problems = scratch.verify().problems;
        assert!(problems.iter().any(|problem| problem.what.contains("not signed")), "{problems:?}");
    }
    fs::remove_file(scratch.0.join("head")).unwrap();
    assert_ne!(scratch.verify().problems, []);
    // An old head fits an old log: only a copy elsewhere, or its time, tells.
    fs::write(&scratch.files()[0], &whole).unwrap();
    scratch.open(1 << 20, 3);
    let mut log = scratch.open(1 << 20, 3);
    write(&mut log, 1);
    log.checkpoint().unwrap();
    let newest = read_head_file(&scratch.0.join("head")).unwrap();
    scratch.edit(|lines| lines.truncate(6));
    fs::write(scratch.0.join("head"), serde_json::to_vec(&kept).unwrap()).unwrap();
    let report = scratch.verify();
    assert_eq!((report.problems.as_slice(), report.signed), (&[][..], kept.time));
    let problems = scratch.verify_with(&[newest]).problems;
    assert!(problems.iter().any(|problem| problem.what.contains("kept head")), "{problems:?}");
}

/// As versions wrote it that had one log and did not sign its head.
#[tokio::test]
async fn an_older_log_still_verifies_and_goes_on() {
    use ed25519_dalek::Signer;
    let scratch = Scratch::new();
    fs::create_dir_all(&scratch.0).unwrap();
    let mut prev = "0".repeat(64);
    let mut text = String::new();
    for seq in 0..9 {
        let event = if seq == 8 {
            let signature = key().sign(format!("berth audit 1\n8\n{prev}\n1\n").as_bytes());
            format!(r#""kind":"checkpoint","oldest":1,"signature":"{}""#, chain::hex(&signature.to_bytes()))
        } else {
            format!(r#""kind":"refused","fingerprint":"number {seq}""#)
        };
        let line = format!(r#"{{"seq":{seq},"time":"2026-11-01T00:00:00Z",{event},"prev":"{prev}"}}"#);
        prev = chain::hash(line.as_bytes());
        text = text + &line + "\n";
    }
    fs::write(scratch.0.join("0000000001.jsonl"), text).unwrap();
    fs::write(scratch.0.join("head"), format!(r#"{{"seq":8,"hash":"{prev}"}}"#)).unwrap();
    fs::write(scratch.0.join("public.key"), chain::hex(key().verifying_key().as_bytes())).unwrap();
    let report = scratch.verify();
    assert_eq!((report.problems.as_slice(), report.entries), (&[][..], 9));
    let recorder = scratch.recorder(1 << 20, 3);
    recorder.record(AuditEvent::Started { version: "2".into() }).await;
    recorder.settle().await;
    let report = scratch.verify();
    assert_eq!(report.problems, []);
    assert!(report.signed.is_some());
    assert_eq!(scratch.all().len(), 9 + 2 + 2, "what was there, and a line and a checkpoint in each log");
    assert!(
        matches!(&scratch.all()[0].event, AuditEvent::Refused { fingerprint, .. } if fingerprint == "number 0")
    );
    // The other log cannot be taken away as if it had never been.
    for path in scratch.files_of(Series::Egress).into_iter().chain([scratch.0.join("egress-head")]) {
        fs::remove_file(path).unwrap();
    }
    assert_ne!(scratch.verify().problems, []);
}

/// What is behind the last newline may be a line that a crash tore, and nothing larger
/// than a line is thrown away for one.
#[test]
fn never_more_than_a_line_is_cut() {
    let junk = vec![b'x'; 300 << 10];
    let scratch = Scratch::new();
    write(&mut scratch.open(1 << 20, 3), 5);
    let path = scratch.files()[0].clone();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [whole.as_slice(), &junk].concat()).unwrap();
    write(&mut scratch.open(1 << 20, 3), 1);
    assert!(fs::read(&path).unwrap().starts_with(&whole));
    let aside = |scratch: &Scratch| {
        let names = fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().path());
        let found: Vec<PathBuf> = names.filter(|path| path.to_string_lossy().contains(".aside-")).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        fs::read(&found[0]).unwrap()
    };
    assert!(aside(&scratch) == junk);
    assert_eq!(scratch.verify().problems, []);
    assert_eq!(scratch.all().len(), 5 + 2 + 1 + 1);

    // A file without any newline, behind one that is well: the chain goes on.
    let scratch = Scratch::new();
    write(&mut scratch.open(1 << 20, 3), 5);
    fs::write(scratch.0.join("0000000002.jsonl"), &junk).unwrap();
    write(&mut scratch.open(1 << 20, 3), 1);
    assert!(aside(&scratch) == junk);
    assert_eq!(scratch.verify().problems, []);

    // A whole line that is too long: the numbers go on behind it, and it is pointed at.
    let scratch = Scratch::new();
    write(&mut scratch.open(1 << 20, 3), 5);
    let path = scratch.files()[0].clone();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [whole.as_slice(), &junk, b"\n"].concat()).unwrap();
    write(&mut scratch.open(1 << 20, 3), 1);
    assert!(fs::read(&path).unwrap().starts_with(&[whole.as_slice(), &junk].concat()));
    let problems = scratch.verify().problems;
    assert_eq!(problems.iter().map(|problem| problem.line).collect::<Vec<_>>(), [6], "{problems:?}");
}

#[test]
fn an_entry_that_could_not_be_read_back_is_recorded_as_lost() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1 << 20, 3);
    log.append(Timestamp::now(), verb(None, &"x".repeat(files::LONGEST_LINE))).unwrap();
    assert!(scratch.all().iter().any(|entry| entry.event == AuditEvent::Lost { events: 1 }));
}

#[test]
fn young_files_stay_up_to_four_times_as_many() {
    let scratch = Scratch::new();
    let mut log = scratch.open_one(Series::Deeds, 2_000, 3, Duration::from_secs(3_600));
    for (lines, files) in [(40, 8), (400, 12)] {
        write(&mut log, lines);
        assert!((3..=files).contains(&scratch.files().len()), "{} files", scratch.files().len());
    }
    assert_eq!(scratch.files().len(), 12);
    // Those that are older than that go.
    let old = std::time::SystemTime::now() - Duration::from_secs(7_200);
    for path in &scratch.files()[..11] {
        fs::File::options().append(true).open(path).unwrap().set_modified(old).unwrap();
    }
    while scratch.files().len() == 12 {
        write(&mut log, 1);
    }
    assert_eq!(scratch.files().len(), 3);
}

fn refusal(user: &UserId, port: u16) -> AuditEvent {
    AuditEvent::Egress(Box::new(EgressEntry {
        user: user.clone(),
        machine: "dev".parse().unwrap(),
        machine_id: "aaaaaaaaaaaa".parse().unwrap(),
        host: "api.example".into(),
        claimed: None,
        address: Some([192, 0, 2, 1].into()),
        port,
        protocol: "tls".into(),
        rule: "closed".into(),
        verdict: "refused".into(),
        reason: "the policy refuses it".into(),
        up: 1,
        down: 0,
        times: 0,
    }))
}

#[tokio::test]
async fn both_logs_are_read_as_one_and_once_at_a_time() {
    let scratch = Scratch::new();
    let user = UserId::random();
    let recorder = scratch.recorder(2_000, 100);
    let at = |second| Timestamp::from_second(second).unwrap();
    for second in 0..200 {
        let event = if second % 3 == 0 {
            refusal(&user, second as u16)
        } else {
            verb(Some(&user), &second.to_string())
        };
        recorder.record_at(at(1_700_000_000 + second), event).await;
    }
    let wanted = Query { user: Some(user.clone()), most: 90, ..Query::default() };
    let found = recorder.read(wanted.clone()).await.unwrap();
    let seconds: Vec<i64> = found.iter().map(|entry| entry.time.as_second() - 1_700_000_000).collect();
    // Of the verbs, which are all of one kind, the last were only counted.
    assert!(seconds.is_sorted() && seconds.last() == Some(&198) && seconds.len() == 90, "{seconds:?}");
    assert!(found.iter().any(|entry| matches!(entry.event, AuditEvent::Verb { .. })));
    let since = Query { since: Some(at(1_700_000_150)), egress: true, ..wanted.clone() };
    assert_eq!(recorder.read(since).await.unwrap().len(), 17);

    // Four of one user, one after the other, and no fifth; another user's go on beside them.
    let other = Query { user: Some(UserId::random()), ..wanted.clone() };
    let (a, b, c, d, fifth, other) = tokio::join!(
        recorder.read(wanted.clone()),
        recorder.read(wanted.clone()),
        recorder.read(wanted.clone()),
        recorder.read(wanted.clone()),
        recorder.read(wanted.clone()),
        recorder.read(other),
    );
    assert!(a.is_ok() && b.is_ok() && c.is_ok() && d.is_ok() && other.is_ok());
    assert!(matches!(fifth, Err(BusyReading::Busy)), "{fifth:?}");
    assert!(recorder.read(wanted).await.is_ok(), "the next one may");
}
