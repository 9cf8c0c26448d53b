//! Events in masses: they must not push the history of others out of the log.

use super::*;
use jiff::SignedDuration;
use std::time::Instant;
use throttle::{MINUTE, Throttle};

/// The review's M5: connections that are refused a million times must not push out what was before.
#[tokio::test]
async fn a_million_refused_connections_leave_an_old_login_where_it_was() {
    const MANY: u64 = 1_000_000;
    let scratch = Scratch::new();
    let (ann, mallory) = (UserId::random(), UserId::random());
    let recorder = scratch.recorder(256 << 10, 2);
    let login = AuditEvent::Login {
        user: ann.clone(),
        fingerprint: "SHA256:ann".into(),
        registered: false,
        address: None,
    };
    recorder.record(login.clone()).await;
    recorder.record(refusal(&ann, 1)).await;
    for number in 0..MANY {
        recorder.record(refusal(&mallory, (number % 50_000) as u16)).await;
    }
    // And requests do not either, though they are in the same log.
    for _ in 0..10_000 {
        recorder.record(verb(Some(&mallory), "")).await;
    }
    recorder.settle().await;
    let found = recorder.read(Query { user: Some(ann), most: 10, ..Query::default() }).await.unwrap();
    assert_eq!(found.len(), 2, "the login, and ann's own refusal: {found:?}");
    assert_eq!(found[0].event, login);
    // None of them is forgotten.
    let theirs = Query { user: Some(mallory), most: usize::MAX, ..Query::default() };
    let theirs = recorder.read(theirs).await.unwrap();
    let (mut refused, mut asked) = (0, 0);
    for entry in &theirs {
        match &entry.event {
            AuditEvent::Egress(entry) => refused += entry.times.max(1),
            AuditEvent::Counted { events, .. } => asked += events,
            _ => asked += 1,
        }
    }
    assert_eq!((refused, asked), (MANY, 10_000));
    assert!(theirs.len() < 2_000, "{} lines", theirs.len());
    assert_eq!(scratch.verify().problems, []);
}

/// Requests at full rate for a week of simulated time, with files an eighth of the default size.
#[test]
fn a_week_of_one_users_requests_leaves_an_old_login_of_another() {
    let scratch = Scratch::new();
    let (ann, mallory) = (UserId::random(), UserId::random());
    let (start, first) = (Instant::now(), Timestamp::from_second(1_700_000_000).unwrap());
    let mut log = scratch.open_one(Series::Deeds, 2 << 20, 16, 7 * DAY);
    let mut throttle = Throttle::default();
    let login = |user: &UserId| AuditEvent::Login {
        user: user.clone(),
        fingerprint: "SHA256:ann".into(),
        registered: false,
        address: None,
    };
    log.append(first, login(&ann)).unwrap();
    let oldest = scratch.files()[0].clone();
    let request = |name: &str| AuditEvent::Verb {
        user: Some(mallory.clone()),
        verb: name.into(),
        machine: None,
        detail: "x".repeat(200),
        outcome: "done".into(),
    };
    let ordinary: Vec<AuditEvent> = (0..20).map(|number| request(&format!("verb {number}"))).collect();
    let grave: Vec<AuditEvent> = throttle::GRAVE.iter().map(|name| request(name)).collect();
    let (mut offered, mut written, mut counted) = (0, 0, 0);
    let mut writes = true;
    for minute in 0..7 * 24 * 60 {
        let (now, time) = (start + minute * MINUTE, first + SignedDuration::from_mins(i64::from(minute)));
        for event in throttle.due(now) {
            if let AuditEvent::Counted { events, .. } = &event {
                counted += events;
            }
            log.append(time, event).unwrap();
        }
        // Once a minute's requests were all counted, one of each kind stands for the next minute's.
        let rounds = if writes { 120 } else { 1 };
        writes = false;
        let kinds = [ordinary.as_slice(), &grave, &[login(&mallory)]].concat();
        for event in (0..rounds).flat_map(|_| &kinds) {
            offered += 1;
            if let Some(event) = throttle.take(event.clone(), now) {
                (writes, written) = (true, written + 1);
                log.append(time, event).unwrap();
            }
        }
        assert!(oldest.exists(), "the oldest file went after {minute} minutes and {written} lines");
    }
    for event in throttle.rest(start + 8 * DAY) {
        let AuditEvent::Counted { events, .. } = event else { panic!("{event:?}") };
        counted += events;
    }
    assert_eq!(written + counted, offered, "none is forgotten");
    let found = query(&scratch.0, &Query { user: Some(ann.clone()), most: 10, ..Query::default() }).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].event, login(&ann));
}
