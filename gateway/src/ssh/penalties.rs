//! Addresses whose logins fail are refused for a while, as by OpenSSH's
//! PerSourcePenalties: guessing and flooding cost an address its turn, and the
//! places that it would take are there for others.

use berth_types::source;
use ipnet::IpNet;
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Penalties below this refuse nothing: people mistype.
const THRESHOLD: Duration = Duration::from_secs(15);
/// Addresses that are remembered. A new one then takes the place of those that
/// are nearest to the end of their penalty.
const SOURCES_MAX: usize = 65_536;

/// How a connection from the network ended without a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offence {
    /// It did not try to log in.
    NoAttempt,
    /// No key was taken.
    Failed,
    /// It used up the time for a login.
    TooSlow,
}

impl Offence {
    /// For the audit log.
    pub const fn words(self) -> &'static str {
        match self {
            Self::NoAttempt => "it did not try to log in",
            Self::Failed => "no key was accepted",
            Self::TooSlow => "the login took too long",
        }
    }

    const fn penalty(self) -> Duration {
        Duration::from_secs(match self {
            Self::NoAttempt => 1,
            Self::Failed => 5,
            Self::TooSlow => 10,
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Penalty {
    until: Instant,
    /// Once over the threshold an address is refused to the end of its penalty.
    refused: bool,
}

#[derive(Debug)]
pub struct Penalties {
    longest: Duration,
    trusted: Vec<IpNet>,
    sources: Mutex<HashMap<IpAddr, Penalty>>,
}

impl Penalties {
    /// None above `longest`; with zero there are none at all.
    pub fn new(longest: Duration, trusted: Vec<IpNet>) -> Self {
        Self { longest, trusted, sources: Mutex::default() }
    }

    /// How long this address is still refused.
    pub fn refused(&self, address: IpAddr) -> Option<Duration> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let penalty = sources.get(&source(address))?;
        let left = penalty.until.saturating_duration_since(Instant::now());
        (penalty.refused && !left.is_zero()).then_some(left)
    }

    /// True if the address is refused from now on and was not before.
    pub fn add(&self, address: IpAddr, offence: Offence) -> bool {
        let address = address.to_canonical();
        if self.longest.is_zero() || self.trusted.iter().any(|network| network.contains(&address)) {
            return false;
        }
        let now = Instant::now();
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if sources.len() >= SOURCES_MAX && !sources.contains_key(&source(address)) {
            make_room(&mut sources, now);
        }
        let penalty = sources.entry(source(address)).or_insert(Penalty { until: now, refused: false });
        if penalty.until <= now {
            *penalty = Penalty { until: now, refused: false };
        }
        penalty.until = (penalty.until + offence.penalty()).min(now + self.longest);
        let before = penalty.refused;
        penalty.refused |= penalty.until >= now + THRESHOLD.min(self.longest);
        penalty.refused && !before
    }
}

/// Forgets penalties that are over, or else the eighth that is so first.
fn make_room(sources: &mut HashMap<IpAddr, Penalty>, now: Instant) {
    sources.retain(|_, penalty| penalty.until > now);
    if sources.len() < SOURCES_MAX {
        return;
    }
    let mut ends: Vec<Instant> = sources.values().map(|penalty| penalty.until).collect();
    let (_, last, _) = ends.select_nth_unstable(SOURCES_MAX / 8);
    let last = *last;
    sources.retain(|_, penalty| penalty.until > last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn penalties() -> Penalties {
        Penalties::new(Duration::from_secs(600), vec!["10.0.0.0/8".parse().unwrap()])
    }

    #[tokio::test(start_paused = true)]
    async fn failures_add_up_to_a_refusal_that_ends() {
        let penalties = penalties();
        let address = "192.0.2.1".parse().unwrap();
        assert!(!penalties.add(address, Offence::Failed));
        assert!(!penalties.add(address, Offence::Failed));
        assert_eq!(penalties.refused(address), None, "two mistakes are human");
        assert!(penalties.add(address, Offence::Failed));
        assert_eq!(penalties.refused(address), Some(Duration::from_secs(15)));
        assert_eq!(penalties.refused("192.0.2.2".parse().unwrap()), None, "a bystander");
        assert!(!penalties.add(address, Offence::TooSlow), "it was refused before");
        assert_eq!(penalties.refused(address), Some(Duration::from_secs(25)));
        tokio::time::advance(Duration::from_secs(24)).await;
        assert!(penalties.refused(address).is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(penalties.refused(address), None);
        assert!(!penalties.add(address, Offence::Failed), "it begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_penalty_has_an_end_and_trusted_addresses_have_none() {
        let penalties = penalties();
        let address = "2001:db8::1".parse().unwrap();
        for _ in 0..1000 {
            penalties.add(address, Offence::TooSlow);
            penalties.add("10.1.2.3".parse().unwrap(), Offence::TooSlow);
            penalties.add("::ffff:10.1.2.3".parse().unwrap(), Offence::TooSlow);
        }
        assert_eq!(penalties.refused(address), Some(Duration::from_secs(600)));
        assert!(penalties.refused("2001:db8::2".parse().unwrap()).is_some(), "one network of 2^64");
        assert_eq!(penalties.refused("10.1.2.3".parse().unwrap()), None);
        let none = Penalties::new(Duration::ZERO, Vec::new());
        assert!(!none.add(address, Offence::TooSlow) && none.refused(address).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded_and_the_worst_are_kept() {
        let penalties = penalties();
        let worst = "192.0.2.1".parse().unwrap();
        for _ in 0..3 {
            penalties.add(worst, Offence::TooSlow);
        }
        for number in 0..SOURCES_MAX + 1000 {
            let address = Ipv4Addr::from(0xc633_0000 + u32::try_from(number).unwrap());
            penalties.add(address.into(), Offence::NoAttempt);
            assert!(penalties.sources.lock().unwrap().len() <= SOURCES_MAX);
        }
        assert!(penalties.refused(worst).is_some());
    }
}
