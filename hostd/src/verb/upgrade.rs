//! What another hypervisor, or another version of it, could not resume.

use crate::host::Host;
use berth_api::StrandedView;
use berth_types::{Generation, Why};

/// Every point in time with memory that this driver and version did not write.
/// Templates are left out: they are made anew, and nobody misses them.
pub fn stranded(host: &Host, driver: &str, version: &str) -> Vec<StrandedView> {
    let strands = |one: &Generation| {
        one.state_size > 0 && (one.driver.as_str(), one.driver_version.as_str()) != (driver, version)
    };
    let mut found = Vec::new();
    for handle in host.fleet.all() {
        let record = handle.record();
        let owner =
            host.registry.user(&record.owner).map_or_else(|| record.owner.to_string(), |user| user.label);
        let view = |one: &Generation, point: String| StrandedView {
            machine: record.name.clone(),
            owner: owner.clone(),
            point,
            created: one.created,
            made_by: format!("{} {}", one.driver, one.driver_version),
        };
        // First what it sleeps in, which may be another machine's.
        let asleep = record.sleeps_in.as_ref().and_then(|id| host.archive.get(id));
        found.extend(asleep.iter().filter(|one| strands(one)).map(|one| view(one, "asleep".to_owned())));
        let mut place = 0;
        for one in host.archive.of(handle.id()) {
            let point = match &one.why {
                Why::Snapshot(label) => label.to_string(),
                Why::Sleep | Why::Restore => {
                    place += 1;
                    format!("@{place}")
                }
                Why::Fork | Why::Template { .. } => continue,
            };
            let listed = record.sleeps_in.as_ref() == Some(&one.id);
            if strands(&one) && !listed {
                found.push(view(&one, point));
            }
        }
    }
    found
}
