//! The idle policy: what speaks against resting, and in which words.

use berth_types::{Activity, IdlePolicy, Machine, Span, State};
use jiff::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Stay,
    Pause,
    Sleep,
}

/// What a running machine that was last seen so should do.
pub fn decide(policy: IdlePolicy, seen: &Activity, keepalive: bool) -> Rest {
    let idle = Duration::from_millis(seen.idle_ms);
    let over = |limit: Option<Span>| limit.is_some_and(|limit| idle >= limit.duration());
    if keepalive {
        Rest::Stay
    } else if over(policy.sleep) {
        Rest::Sleep
    } else if over(policy.pause) {
        Rest::Pause
    } else {
        Rest::Stay
    }
}

/// Why a machine is awake or not, in a sentence with the numbers.
pub fn explain(machine: &Machine, seen: Option<&Activity>, policy: IdlePolicy, now: Timestamp) -> String {
    let name = &machine.name;
    let wakes = match machine.schedule {
        Some(schedule) => format!("; it wakes by itself at {}", schedule.at),
        None => String::new(),
    };
    match machine.state {
        State::Running => {
            let Some(seen) = seen else { return format!("{name} has just come up") };
            if let Some(until) = machine.keepalive_until.filter(|until| *until > now) {
                return format!("{name} is awake because of a keepalive until {until}");
            }
            format!("{name} is awake because {}{}{wakes}", reasons(seen), outlook(seen, policy))
        }
        State::Paused => {
            if let Some(hold) = machine.hold() {
                return format!("{name} is paused: {}", hold.reason);
            }
            let later =
                policy.sleep.map_or(String::new(), |sleep| format!(", and asleep when idle for {sleep}"));
            format!(
                "{name} is paused: nothing has happened for a while; any connection resumes it{later}{wakes}"
            )
        }
        State::Asleep => {
            format!("{name} is asleep: it costs no memory and no CPU; any connection wakes it{wakes}")
        }
        State::Stopped => format!("{name} is stopped: any connection boots it{wakes}"),
        State::Failed => {
            let reason = machine.failure.as_ref().map_or("", |failure| failure.reason.as_str());
            format!("{name} failed: {reason}")
        }
        State::Starting | State::Suspending | State::Stopping | State::Removing => {
            format!("{name} is {}", machine.state)
        }
    }
}

fn reasons(seen: &Activity) -> String {
    let mut reasons = Vec::new();
    if seen.commands > 0 {
        let runs = if seen.commands == 1 { "command runs" } else { "commands run" };
        reasons.push(format!("{} {runs} over ssh", seen.commands));
    }
    if seen.busy_terminals > 0 {
        let jobs = if seen.busy_terminals == 1 { "job is" } else { "jobs are" };
        reasons.push(format!("{} {jobs} in the foreground of a terminal", seen.busy_terminals));
    }
    if seen.idle_ms == 0 && reasons.is_empty() {
        reasons.push(format!("it uses {:.0}% of a CPU or moves bytes", seen.cpu_percent));
    }
    if reasons.is_empty() {
        let quiet = Span::seconds(seen.idle_ms / 1_000);
        reasons.push(format!("it was used {quiet} ago (CPU now {:.0}%)", seen.cpu_percent));
    }
    reasons.join(" and ")
}

fn outlook(seen: &Activity, policy: IdlePolicy) -> String {
    if seen.idle_ms == 0 {
        return String::new();
    }
    let left = |limit: Span| Span::seconds(limit.duration().as_secs().saturating_sub(seen.idle_ms / 1_000));
    match (policy.pause, policy.sleep) {
        (Some(pause), _) => format!("; it pauses in {}", left(pause)),
        (None, Some(sleep)) => format!("; it falls asleep in {}", left(sleep)),
        (None, None) => "; its idle policy never lets it rest".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: IdlePolicy = IdlePolicy { pause: Some(Span::seconds(30)), sleep: Some(Span::seconds(600)) };

    fn idle(seconds: u64) -> Activity {
        Activity { idle_ms: seconds * 1_000, ..Activity::default() }
    }

    #[test]
    fn pause_first_then_sleep_and_never_under_a_keepalive() {
        assert_eq!(decide(POLICY, &idle(29), false), Rest::Stay);
        assert_eq!(decide(POLICY, &idle(30), false), Rest::Pause);
        assert_eq!(decide(POLICY, &idle(600), false), Rest::Sleep);
        assert_eq!(decide(POLICY, &idle(600), true), Rest::Stay);
        assert_eq!(decide(IdlePolicy { pause: None, sleep: None }, &idle(9_999), false), Rest::Stay);
    }
}
