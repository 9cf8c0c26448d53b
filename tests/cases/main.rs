//! The end-to-end cases, one file per area, all through the real `ssh`.
//!
//! `cargo test -p berth-tests [-- FILTER]` runs them on machines of a service
//! of its own; with `BERTH_TEST_AGAINST=sshd` those that are true of any SSH
//! server run against OpenSSH's instead.

mod cloud;
mod context;
mod egress;
mod faults;
mod files;
mod forwards;
mod hygiene;
mod lobby;
mod mistakes;
mod private;
mod readme;
mod rest;
mod session;
mod terminal;
mod users;
mod verbs;

use berth_tests::{LOG, clean_up_on_signals, missing_for_cloud_hypervisor};
use context::{Case, Context, Needs};
use libtest_mimic::{Arguments, Failed, Trial};
use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// More would only make each of them slower: guests are emulated.
const THREADS: usize = 3;
/// Whoever wants the whole faster looks at these.
const LONGEST: usize = 15;
/// Of a failure's causes, where they are told in short.
const SHORT: usize = 500;

const AREAS: &[(&str, &[Case])] = &[
    ("session", session::CASES),
    ("terminal", terminal::CASES),
    ("files", files::CASES),
    ("forwards", forwards::CASES),
    ("lobby", lobby::CASES),
    ("verbs", verbs::CASES),
    ("mistakes", mistakes::CASES),
    ("users", users::CASES),
    ("private", private::CASES),
    ("hygiene", hygiene::CASES),
    ("readme", readme::CASES),
    ("sleep", rest::sleep::CASES),
    ("rest_session", rest::session::CASES),
    ("fork", rest::fork::CASES),
    ("snapshot", rest::snapshot::CASES),
    ("clock", rest::clock::CASES),
    ("rest_mistakes", rest::mistakes::CASES),
    ("races", rest::races::CASES),
    ("walk", rest::walk::CASES),
    ("killed", rest::killed::CASES),
    ("random", rest::random::CASES),
    ("egress_secrets", egress::secrets::CASES),
    ("egress_nowhere", egress::nowhere::CASES),
    ("egress_policies", egress::policies::CASES),
    ("egress_attacks", egress::attacks::CASES),
    ("egress_clients", egress::clients::CASES),
    ("egress_rest", egress::rest::CASES),
    ("egress_bridge", egress::bridge::CASES),
    ("cloud_hypervisor", cloud::CASES),
    ("guests", faults::guests::CASES),
    ("daemons", faults::daemons::CASES),
    ("moments", faults::moments::CASES),
    ("limits", faults::limits::CASES),
];

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    clean_up_on_signals()?;
    let context = Arc::new(Context::new()?);

    let missing = missing_for_cloud_hypervisor();
    if let Some(missing) = &missing {
        println!("skipped: cloud_hypervisor: {missing}");
    }
    let mut trials = Vec::new();
    let times = Arc::new(Mutex::new(Vec::new()));
    let failures = Arc::new(Mutex::new(Vec::new()));
    for (area, cases) in AREAS {
        for case in *cases {
            let (inner, times) = (Arc::clone(&context), Arc::clone(&times));
            let failures = Arc::clone(&failures);
            let skipped = (context.is_sshd() && case.needs != Needs::AnyServer)
                || (missing.is_some() && case.needs == Needs::CloudHypervisor);
            let name = format!("{area}::{}", case.name);
            let trial = Trial::test(name.clone(), move || {
                let start = Instant::now();
                let ended = (case.run)(&inner);
                times.lock().unwrap_or_else(PoisonError::into_inner).push((start.elapsed(), name.clone()));
                ended.map_err(|error| {
                    failures.lock().unwrap_or_else(PoisonError::into_inner).push(in_short(&name, &error));
                    explain(case, &inner, &error)
                })
            });
            trials.push(trial.with_ignored_flag(skipped));
        }
    }
    let cases = libtest_mimic::run(&arguments, trials);
    if arguments.list {
        return Ok(cases.exit_code());
    }
    let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
    times.sort_unstable();
    println!("the longest:");
    for (time, name) in times.iter().rev().take(LONGEST) {
        println!("  {:>4} s  {name}", time.as_secs());
    }

    // Only now can it be seen whether anything is left.
    let end = Trial::test("end::nothing_is_left", move || {
        let left = context.end()?;
        if left.is_empty() { Ok(()) } else { Err(left.join("\n").into()) }
    });
    let end = libtest_mimic::run(&Arguments { filter: None, ..arguments }, vec![end]);
    // Again at the end, which is what is kept of a long log.
    for failure in failures.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("failed: {failure}");
    }
    Ok(if cases.has_failed() { cases.exit_code() } else { end.exit_code() })
}

/// The causes on a line, without the logs among them.
fn in_short(name: &str, error: &anyhow::Error) -> String {
    let causes = error.chain().map(ToString::to_string).filter(|cause| !cause.starts_with(LOG));
    let line = causes.map(|cause| cause.replace('\n', " ")).collect::<Vec<_>>().join(": ");
    format!("{name}: {}", line.chars().take(SHORT).collect::<String>())
}

fn explain(case: &Case, context: &Context, error: &anyhow::Error) -> Failed {
    let logs = if matches!(case.needs, Needs::OwnService | Needs::CloudHypervisor) {
        String::new()
    } else {
        context.logs()
    };
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    format!("{}\n{logs}", causes.join("\nbecause: ")).into()
}
