//! Limits on new users where anybody may become one.

use berth_config::Gateway;
use berth_types::{Code, Refusal, User, source};
use jiff::{SignedDuration, Timestamp};
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// Addresses whose registrations are counted.
const SOURCES_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub struct Admission {
    registered: Mutex<HashMap<IpAddr, Vec<Timestamp>>>,
}

impl Admission {
    /// May a client register now? One who may is counted.
    pub fn register(
        &self,
        limits: &Gateway,
        users: &[User],
        address: IpAddr,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let full = |most: u32, count: usize| most > 0 && count >= most as usize;
        if full(limits.users_max, users.len()) {
            let message = "this host has all the users that it may have";
            return Err(Refusal::new(Code::Limit, message, "ask its operator"));
        }
        let is_recent = |time: &Timestamp| now.duration_since(*time) < HOUR;
        if full(limits.registration_per_hour, users.iter().filter(|user| is_recent(&user.created)).count()) {
            let message = "there were too many new users in the last hour";
            return Err(Refusal::new(Code::Limit, message, "try again later"));
        }
        let address = address.to_canonical();
        if limits.trusted_addresses.iter().any(|network| network.contains(&address)) {
            return Ok(());
        }
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        if registered.len() >= SOURCES_MAX {
            registered.retain(|_, times| times.iter().any(is_recent));
        }
        let known = registered.contains_key(&source(address));
        if !known && registered.len() >= SOURCES_MAX {
            let message = "there were new users from too many addresses in the last hour";
            return Err(Refusal::new(Code::Limit, message, "try again later"));
        }
        let times = registered.entry(source(address)).or_default();
        times.retain(is_recent);
        if full(limits.registration_per_address, times.len()) {
            let message = "there were too many new users from your address in the last hour";
            return Err(Refusal::new(Code::Limit, message, "try again later, or log in with a key you have"));
        }
        times.push(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::{Unknown, UserId};

    fn limits() -> Gateway {
        let mut limits = berth_config::parse(berth_config::DEFAULT_TOML).unwrap().config.gateway;
        limits.registration_per_hour = 5;
        limits.registration_per_address = 2;
        limits.users_max = 7;
        limits
    }

    fn users(count: usize, created: Timestamp) -> Vec<User> {
        let user = || User {
            id: UserId::random(),
            label: String::new(),
            created,
            locked: None,
            unknown: Unknown::new(),
        };
        (0..count).map(|_| user()).collect()
    }

    #[test]
    fn registrations_have_limits_in_all_and_from_one_address() {
        let (admission, now) = (Admission::default(), Timestamp::now());
        let earlier = now - SignedDuration::from_mins(61);
        let register = |users: &[User], address: &str, now| {
            admission
                .register(&limits(), users, address.parse().unwrap(), now)
                .map_err(|refusal| refusal.message)
        };
        for _ in 0..2 {
            register(&[], "192.0.2.1", now).unwrap();
        }
        assert!(register(&[], "192.0.2.1", now).unwrap_err().contains("from your address"));
        register(&[], "192.0.2.2", now).unwrap();
        register(&[], "192.0.2.1", now + HOUR).unwrap();
        for _ in 0..9 {
            register(&[], "127.0.0.1", now).unwrap();
        }
        assert!(register(&users(5, now), "192.0.2.3", now).unwrap_err().contains("too many new users"));
        register(&users(6, earlier), "192.0.2.3", now).unwrap();
        assert!(register(&users(7, earlier), "192.0.2.4", now).unwrap_err().contains("all the users"));
    }
}
