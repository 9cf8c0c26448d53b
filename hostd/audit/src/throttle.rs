//! What is written line by line, and what is counted: a machine that is refused a
//! thousand times a second, or a user who asks as often, must not push everybody's
//! history out of the log.
//!
//! - A refusal is a line at once for each place that a machine is refused, and then one
//!   a minute with a count for as long as it goes on. Beyond [`PLACES`] places of a
//!   user within a minute there is one line a minute for each machine.
//! - What is allowed is a line each, up to [`SINGLY`] of a user in a minute; beyond
//!   that it is treated as refusals are, and its bytes are added up.
//! - Logins, requests and states are a line each, up to [`OF_A_KIND`] of a kind and
//!   [`OF_ALL_KINDS`] of a user in a minute; the rest is counted. What changes what a
//!   user may do or reach is counted by its kind alone: other requests cannot hide it.
//! - Of both sorts a user has so many lines a day ([`A_DAY`], [`GRAVE_A_DAY`]). Beyond
//!   them requests are counted for an hour at a time.
//!
//! What the operator does is always written.

use berth_types::{AuditEvent, EgressEntry, MachineId, UserId};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Until what was counted is written.
pub const MINUTE: Duration = Duration::from_secs(60);
/// Places of one user that have a line of their own in a minute.
pub const PLACES: usize = 256;
/// Decisions of one user in a minute that are a line each, if nothing was refused.
pub const SINGLY: u64 = 1_200;
/// Events of one kind and one user in a minute that are a line each.
pub const OF_A_KIND: u64 = 120;
/// Events of one user in a minute that are a line each.
pub const OF_ALL_KINDS: u64 = 600;
/// Events of one user in a day that are a line each.
pub const A_DAY: u64 = 20_000;
/// Events of one user in a day that are a line each, of those counted by their kind alone.
pub const GRAVE_A_DAY: u64 = 2_000;
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Requests that others of the same user do not count against.
pub const GRAVE: &[&str] =
    &["key add", "key rm", "secret set", "secret rm", "egress", "egress --all", "egress --label"];

#[derive(Debug, Default)]
pub struct Throttle {
    users: HashMap<UserId, Decisions>,
    deeds: HashMap<Option<UserId>, Deeds>,
}

#[derive(Debug)]
struct Decisions {
    since: Instant,
    singly: u64,
    places: HashMap<Place, Counted>,
    elsewhere: HashMap<MachineId, Counted>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Place {
    machine: MachineId,
    host: String,
    claimed: Option<String>,
    address: Option<std::net::IpAddr>,
    port: u16,
    protocol: String,
    verdict: String,
    rule: String,
    reason: String,
}

/// Decisions since a line was last written about them.
#[derive(Debug)]
struct Counted {
    since: Instant,
    /// The last one, with how many there were and their bytes.
    sum: Option<Box<EgressEntry>>,
}

#[derive(Debug)]
struct Deeds {
    since: Instant,
    written: u64,
    kinds: HashMap<String, Kind>,
    day: Instant,
    /// Lines that the day still has.
    left: u64,
    grave_left: u64,
}

#[derive(Debug, Default)]
struct Kind {
    written: u64,
    counted: u64,
}

impl Throttle {
    /// The event, if it is written as a line of its own.
    pub fn take(&mut self, event: AuditEvent, now: Instant) -> Option<AuditEvent> {
        match event {
            AuditEvent::Egress(entry) => {
                let user = self.users.entry(entry.user.clone()).or_insert_with(|| Decisions::new(now));
                user.take(entry, now).map(AuditEvent::Egress)
            }
            event => match kind(&event) {
                Some(kind) => {
                    let user = self.deeds.entry(event.user().cloned()).or_insert_with(|| Deeds::new(now));
                    user.writes(&kind, now).then_some(event)
                }
                None => Some(event),
            },
        }
    }

    /// What was counted for a minute, to be written now.
    pub fn due(&mut self, now: Instant) -> Vec<AuditEvent> {
        self.older_than(MINUTE, now)
    }

    /// All that was counted: nothing more comes.
    pub fn rest(&mut self, now: Instant) -> Vec<AuditEvent> {
        self.older_than(Duration::ZERO, now)
    }

    fn older_than(&mut self, age: Duration, now: Instant) -> Vec<AuditEvent> {
        let old = |since: Instant| now.saturating_duration_since(since) >= age;
        let mut due = Vec::new();
        self.users.retain(|_, user| {
            user.places.retain(|_, place| !old(place.since) || place.begin_again(now, &mut due));
            user.elsewhere.retain(|_, place| !old(place.since) || place.begin_again(now, &mut due));
            !(old(user.since) && user.places.is_empty() && user.elsewhere.is_empty())
        });
        self.deeds.retain(|user, deeds| {
            let age = if age.is_zero() { age } else { deeds.span() };
            if now.saturating_duration_since(deeds.since) < age {
                return true;
            }
            let counted = deeds.kinds.drain().filter(|(_, kind)| kind.counted > 0);
            due.extend(counted.map(|(verb, kind)| AuditEvent::Counted {
                user: user.clone(),
                verb,
                events: kind.counted,
            }));
            deeds.begin(now);
            deeds.is_in_use()
        });
        due
    }
}

impl Decisions {
    fn new(now: Instant) -> Self {
        Self { since: now, singly: 0, places: HashMap::new(), elsewhere: HashMap::new() }
    }

    fn take(&mut self, entry: Box<EgressEntry>, now: Instant) -> Option<Box<EgressEntry>> {
        if now.saturating_duration_since(self.since) >= MINUTE {
            (self.since, self.singly) = (now, 0);
        }
        if entry.verdict == "allowed" && self.singly < SINGLY {
            self.singly += 1;
            return Some(entry);
        }
        let place = Place {
            machine: entry.machine_id.clone(),
            host: entry.host.clone(),
            claimed: entry.claimed.clone(),
            address: entry.address,
            port: entry.port,
            protocol: entry.protocol.clone(),
            verdict: entry.verdict.clone(),
            rule: entry.rule.clone(),
            reason: entry.reason.clone(),
        };
        if let Some(known) = self.places.get_mut(&place) {
            known.add(entry);
            return None;
        }
        if self.places.len() < PLACES {
            self.places.insert(place, Counted { since: now, sum: None });
            return Some(entry);
        }
        let new = || Counted { since: now, sum: None };
        self.elsewhere.entry(entry.machine_id.clone()).or_insert_with(new).add_elsewhere(entry);
        None
    }
}

impl Counted {
    fn add(&mut self, mut entry: Box<EgressEntry>) {
        entry.times = entry.times.max(1);
        if let Some(sum) = &self.sum {
            entry.times = entry.times.saturating_add(sum.times);
            entry.up = entry.up.saturating_add(sum.up);
            entry.down = entry.down.saturating_add(sum.down);
        }
        self.sum = Some(entry);
    }

    /// The line names no place, for it is about many.
    fn add_elsewhere(&mut self, mut entry: Box<EgressEntry>) {
        "many places".clone_into(&mut entry.host);
        (entry.claimed, entry.address, entry.port) = (None, None, 0);
        "so many that they are not listed".clone_into(&mut entry.reason);
        self.add(entry);
    }

    /// Hands over what was counted. False if that is nothing: the place is quiet.
    fn begin_again(&mut self, now: Instant, due: &mut Vec<AuditEvent>) -> bool {
        self.since = now;
        let counted = self.sum.take();
        let goes_on = counted.is_some();
        due.extend(counted.map(AuditEvent::Egress));
        goes_on
    }
}

impl Deeds {
    fn new(now: Instant) -> Self {
        let kinds = HashMap::new();
        Self { since: now, written: 0, kinds, day: now, left: A_DAY, grave_left: GRAVE_A_DAY }
    }

    /// For how long requests are counted before a line says so.
    const fn span(&self) -> Duration {
        if self.left == 0 || self.grave_left == 0 { HOUR } else { MINUTE }
    }

    fn begin(&mut self, now: Instant) {
        (self.since, self.written) = (now, 0);
        self.kinds.clear();
        if now.saturating_duration_since(self.day) >= DAY {
            (self.day, self.left, self.grave_left) = (now, A_DAY, GRAVE_A_DAY);
        }
    }

    /// Is there anything to remember of this day?
    const fn is_in_use(&self) -> bool {
        self.left < A_DAY || self.grave_left < GRAVE_A_DAY
    }

    fn writes(&mut self, kind: &str, now: Instant) -> bool {
        // What is counted is written by `due`; until then the minute goes on.
        let over = now.saturating_duration_since(self.since) >= self.span();
        if over && self.kinds.values().all(|kind| kind.counted == 0) {
            self.begin(now);
        }
        let grave = GRAVE.contains(&kind);
        let all = if grave { 0 } else { self.written };
        let left = if grave { &mut self.grave_left } else { &mut self.left };
        let this = self.kinds.entry(kind.to_owned()).or_default();
        if this.written < OF_A_KIND && all < OF_ALL_KINDS && *left > 0 {
            this.written += 1;
            self.written += u64::from(!grave);
            *left -= 1;
            true
        } else {
            this.counted += 1;
            false
        }
    }
}

/// Under which an event is counted; `None`: it is always written.
fn kind(event: &AuditEvent) -> Option<String> {
    match event {
        AuditEvent::Login { .. } => Some("login".to_owned()),
        AuditEvent::Refused { .. } => Some("refused login".to_owned()),
        AuditEvent::Machine { .. } => Some("state".to_owned()),
        AuditEvent::Verb { user: Some(_), verb, .. } => Some(verb.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(user: &UserId, machine: &MachineId, port: u16, verdict: &str) -> AuditEvent {
        AuditEvent::Egress(Box::new(EgressEntry {
            user: user.clone(),
            machine: "dev".parse().unwrap(),
            machine_id: machine.clone(),
            host: String::new(),
            claimed: None,
            address: Some([192, 0, 2, 1].into()),
            port,
            protocol: "tcp".into(),
            rule: String::new(),
            verdict: verdict.into(),
            reason: String::new(),
            up: 10,
            down: 1,
            times: 0,
        }))
    }

    fn asked(user: &UserId, verb: &str) -> AuditEvent {
        let (user, verb) = (Some(user.clone()), verb.to_owned());
        AuditEvent::Verb { user, verb, machine: None, detail: String::new(), outcome: "done".into() }
    }

    fn times(events: &[AuditEvent]) -> Vec<(String, u64, u64)> {
        let one = |event: &AuditEvent| match event {
            AuditEvent::Egress(entry) => (entry.host.clone(), entry.times, entry.up),
            other => panic!("{other:?}"),
        };
        events.iter().map(one).collect()
    }

    #[test]
    fn a_place_is_named_at_once_and_then_once_a_minute() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let (user, machine) = (UserId::random(), MachineId::random());
        let at = |seconds| start + Duration::from_secs(seconds);
        let refused = |port| decision(&user, &machine, port, "refused");
        assert!(throttle.take(refused(1), at(0)).is_some());
        assert!(throttle.take(refused(1), at(1)).is_none());
        assert!(throttle.take(refused(2), at(1)).is_some());
        assert!(throttle.take(refused(1), at(3)).is_none());
        assert_eq!(throttle.due(at(59)), []);
        assert_eq!(times(&throttle.due(at(61))), [(String::new(), 2, 20)]);
        // It went on; the other place was quiet and is forgotten.
        assert!(throttle.take(refused(1), at(62)).is_none());
        assert!(throttle.take(refused(2), at(63)).is_some());
        assert_eq!(times(&throttle.rest(at(64))), [(String::new(), 1, 10)]);
        assert_eq!(throttle.due(at(200)), []);
        assert!(throttle.users.is_empty(), "nothing is kept of who is quiet");
    }

    #[test]
    fn many_places_are_one_line_for_each_machine() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        let (user, one, two) = (UserId::random(), MachineId::random(), MachineId::random());
        let mut written = 0;
        for port in 0..10_000 {
            for machine in [&one, &two] {
                written += u64::from(throttle.take(decision(&user, machine, port, "failed"), now).is_some());
            }
        }
        assert_eq!(written, PLACES as u64);
        let rest = times(&throttle.due(now + MINUTE));
        assert_eq!(rest.iter().map(|(_, times, _)| times).sum::<u64>() + written, 20_000);
        assert_eq!(rest.iter().filter(|(host, ..)| host == "many places").count(), 2);
    }

    #[test]
    fn what_is_allowed_is_a_line_each_up_to_a_limit() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        let (user, machine) = (UserId::random(), MachineId::random());
        let written = (0..SINGLY * 2)
            .filter(|_| throttle.take(decision(&user, &machine, 443, "allowed"), now).is_some())
            .count() as u64;
        // One more, with which the place begins to be counted.
        assert_eq!(written, SINGLY + 1);
        assert_eq!(times(&throttle.due(now + MINUTE)), [(String::new(), SINGLY - 1, (SINGLY - 1) * 10)]);
        assert!(throttle.take(decision(&user, &machine, 443, "allowed"), now + MINUTE * 2).is_some());
    }

    #[test]
    fn requests_are_counted_by_kind_and_none_hides_a_grave_one() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        let (ann, bob) = (UserId::random(), UserId::random());
        for number in 0..2_000 {
            throttle.take(asked(&ann, ["ls", "info", "attach", "why", "whoami", "audit"][number % 6]), now);
        }
        assert!(throttle.take(asked(&ann, "snapshots"), now).is_none(), "that is enough of ann");
        assert!(throttle.take(asked(&ann, "key add"), now).is_some());
        assert!(throttle.take(asked(&bob, "ls"), now).is_some());
        let counted: u64 = throttle
            .due(now + MINUTE)
            .iter()
            .map(|event| match event {
                AuditEvent::Counted { user, events, .. } if user.as_ref() == Some(&ann) => *events,
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(counted, 2_000 - OF_ALL_KINDS + 1);
        assert!(throttle.take(asked(&ann, "ls"), now + MINUTE).is_some());
    }

    #[test]
    fn the_operator_is_always_on_record() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        let event = AuditEvent::Verb {
            user: None,
            verb: "user ls".into(),
            machine: None,
            detail: "".into(),
            outcome: "done".into(),
        };
        assert!((0..10_000).all(|_| throttle.take(event.clone(), now).is_some()));
    }
}
