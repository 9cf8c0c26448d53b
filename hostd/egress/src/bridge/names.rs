//! Which names the host resolved to which addresses for one machine.
//!
//! A guest says what it likes in SNI and Host; this is what the host knows.

use berth_types::egress::HostName;
use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A guest that looks up more forgets the oldest.
const MAX_NAMES: usize = 1024;
const MAX_ADDRESSES: usize = 64;
/// Programs keep addresses for longer than they should.
const TIED_AT_LEAST: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub struct Names(Mutex<HashMap<HostName, Known>>);

#[derive(Debug)]
struct Known {
    /// Each with the time until which a connection to it counts as to this name.
    tied: Vec<(Ipv4Addr, Instant)>,
    /// The newest answer, and until when it may be given again.
    answer: Vec<Ipv4Addr>,
    fresh: Instant,
}

impl Names {
    fn lock(&self) -> MutexGuard<'_, HashMap<HostName, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn remember(&self, name: &HostName, addresses: &[Ipv4Addr], lifetime: Duration) {
        let now = Instant::now();
        let mut names = self.lock();
        if names.len() >= MAX_NAMES && !names.contains_key(name) {
            let oldest = names.iter().min_by_key(|(_, known)| known.fresh).map(|(name, _)| name.clone());
            oldest.and_then(|name| names.remove(&name));
        }
        let known = names.entry(name.clone()).or_insert_with(|| Known {
            tied: Vec::new(),
            answer: Vec::new(),
            fresh: now,
        });
        known.tied.retain(|(address, until)| *until > now && !addresses.contains(address));
        let until = now + lifetime.max(TIED_AT_LEAST);
        known.tied.extend(addresses.iter().map(|address| (*address, until)));
        let excess = known.tied.len().saturating_sub(MAX_ADDRESSES);
        known.tied.drain(..excess);
        known.answer = addresses.to_vec();
        known.fresh = now + lifetime;
    }

    /// An answer that may be given again, and for how long.
    pub fn fresh(&self, name: &HostName) -> Option<(Vec<Ipv4Addr>, Duration)> {
        let names = self.lock();
        let known = names.get(name)?;
        let left = known.fresh.checked_duration_since(Instant::now())?;
        Some((known.answer.clone(), left))
    }

    pub fn tied(&self, name: &HostName, address: Ipv4Addr) -> bool {
        let now = Instant::now();
        self.lock()
            .get(name)
            .is_some_and(|known| known.tied.iter().any(|(tied, until)| *tied == address && *until > now))
    }

    /// All names that an address was given for.
    pub fn of(&self, address: Ipv4Addr) -> Vec<HostName> {
        let now = Instant::now();
        let tied = |known: &Known| known.tied.iter().any(|(tied, until)| *tied == address && *until > now);
        self.lock().iter().filter(|(_, known)| tied(known)).map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_stay_tied_after_the_answer_changed() {
        let (first, second) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        let names = Names::default();
        names.remember(&name("a.example"), &[first], Duration::ZERO);
        assert!(names.fresh(&name("a.example")).is_none());
        names.remember(&name("a.example"), &[second], Duration::from_secs(60));
        names.remember(&name("b.example"), &[second], Duration::from_secs(60));
        assert!(names.tied(&name("a.example"), first));
        assert!(!names.tied(&name("b.example"), first));
        assert_eq!(names.of(first), [name("a.example")]);
        assert_eq!(names.of(second).len(), 2);
        assert_eq!(names.fresh(&name("a.example")).unwrap().0, [second]);
    }

    #[test]
    fn a_guest_cannot_fill_it() {
        let names = Names::default();
        for number in 0..MAX_NAMES + 10 {
            names.remember(
                &name(&format!("n{number}.example")),
                &[Ipv4Addr::LOCALHOST],
                Duration::from_secs(1),
            );
        }
        assert_eq!(names.lock().len(), MAX_NAMES);
        for last in 0..=u8::MAX {
            names.remember(&name("a.example"), &[Ipv4Addr::new(192, 0, 2, last)], Duration::ZERO);
        }
        assert_eq!(names.lock().get(&name("a.example")).unwrap().tied.len(), MAX_ADDRESSES);
    }
}
