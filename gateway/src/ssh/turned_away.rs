//! Connections that found no place among those that log in. A flood of them is one line of
//! the audit log for each source and minute.

use super::{
    Gateway,
    limits::Busy,
    repeats::{MINUTE, Repeats},
};
use berth_api::Request;
use berth_types::source;
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Between two looks at what is due.
const TICK: Duration = Duration::from_secs(5);
/// Sources that are reported on their own at a time. Connections from others are counted
/// together, for the gateway's log only.
const SOURCES_MAX: usize = 256;

/// Counts the connections that were turned away, by source.
#[derive(Debug, Default)]
pub struct TurnedAway(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    sources: HashMap<IpAddr, (Report, Repeats)>,
    others: Repeats,
}

/// What is told of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of the source's last connection.
    address: IpAddr,
    busy: Busy,
    connections: u64,
}

impl TurnedAway {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection. A report, if one about its source is due now.
    pub fn add(&self, address: IpAddr, busy: Busy) -> Option<Report> {
        let mut table = self.table();
        let is_full = table.sources.len() >= SOURCES_MAX;
        let report = Report { address, busy, connections: 0 };
        if is_full && !table.sources.contains_key(&source(address)) {
            log_others(table.others.add());
            return None;
        }
        let new = || (report.clone(), Repeats::default());
        let (last, repeats) = table.sources.entry(source(address)).or_insert_with(new);
        *last = report.clone();
        repeats.add().map(|connections| Report { connections, ..report })
    }

    /// Reports on sources of which none was made for `age`. Forgets those that stay away.
    fn due(&self, age: Duration) -> Vec<Report> {
        let mut table = self.table();
        log_others(table.others.take(age));
        let mut due = Vec::new();
        table.sources.retain(|_, (last, repeats)| {
            let is_quiet = repeats.is_older_than(age);
            match repeats.take(age) {
                Some(connections) => due.push(Report { connections, ..last.clone() }),
                None if is_quiet => return false,
                None => {}
            }
            true
        });
        due
    }
}

fn log_others(connections: Option<u64>) {
    if let Some(connections) = connections {
        tracing::warn!(connections, "turned away from more addresses than are reported one by one");
    }
}

impl Report {
    fn reason(&self) -> String {
        let many = match self.connections {
            0 | 1 => String::new(),
            connections => format!(" ({connections} connections within a minute)"),
        };
        format!("turned away: {}{many}", self.busy.reason())
    }

    /// Tells the gateway's log and, through hostd, the audit log.
    pub async fn send(self, gateway: &Gateway) {
        let (address, reason) = (self.address, self.reason());
        tracing::info!(%address, reason, "connections were turned away");
        let _ = gateway.ask(Request::LoginFailed { address, fingerprint: None, reason }).await;
    }
}

/// Sends reports as they become due, for as long as the gateway runs.
pub async fn report(gateway: &Gateway) {
    loop {
        tokio::time::sleep(TICK).await;
        for report in gateway.turned_away.due(MINUTE) {
            report.send(gateway).await;
        }
    }
}

/// Sends what is counted: the gateway stops.
pub async fn report_the_rest(gateway: &Gateway) {
    for report in gateway.turned_away.due(Duration::ZERO) {
        report.send(gateway).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_source_is_reported_once_a_minute_with_its_count() {
        let away = TurnedAway::default();
        let (one, two): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let first = away.add(one, Busy::Address).unwrap();
        assert_eq!(first.reason(), "turned away: too many logins at once from its address");
        for _ in 0..1000 {
            assert_eq!(away.add(one, Busy::Address), None);
        }
        assert!(away.add(two, Busy::All).is_some());
        assert_eq!(away.due(MINUTE), []);
        tokio::time::advance(MINUTE).await;
        let due = away.due(MINUTE);
        assert_eq!(due, [Report { address: one, busy: Busy::Address, connections: 1000 }]);
        assert!(due[0].reason().ends_with("from its address (1000 connections within a minute)"));
        tokio::time::advance(MINUTE).await;
        assert_eq!(away.due(MINUTE), []);
        assert!(away.table().sources.is_empty(), "nothing is kept of sources that stay away");
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_of_sources_costs_a_bounded_number_of_reports() {
        let away = TurnedAway::default();
        let addresses =
            (0..10_000).map(|number| IpAddr::from(std::net::Ipv4Addr::from(0xc633_0000 + number)));
        let at_once = addresses.filter(|address| away.add(*address, Busy::All).is_some()).count();
        assert_eq!(at_once, SOURCES_MAX);
        assert_eq!(away.table().others.take(Duration::ZERO), Some(10_000 - SOURCES_MAX as u64 - 1));
    }
}
