//! The contract of [`berth_hypervisor`]: one set of cases, run against every
//! driver that this host has. Cases about guests need one, so the fake sits
//! them out.

#[path = "contract/adoption.rs"]
mod adoption;
#[path = "contract/copies.rs"]
mod copies;
#[path = "contract/endings.rs"]
mod endings;
#[path = "contract/faults.rs"]
mod faults;
#[path = "contract/lifecycle.rs"]
mod lifecycle;
#[path = "contract/limits.rs"]
mod limits;
mod support;
#[path = "contract/timer.rs"]
mod timer;

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use std::{process::ExitCode, time::Instant};
use support::subject::{
    CLOUD_HYPERVISOR, FAKE, QEMU_KVM, QEMU_TCG, Subject, find_cloud_hypervisor, find_fake, find_qemu_kvm,
    find_qemu_tcg,
};

type Case = fn(&Subject) -> Result<()>;

/// For every driver.
const CASES: &[(&str, Case)] = &[
    ("pause_and_resume", lifecycle::pause_and_resume),
    ("save_and_restore", lifecycle::save_and_restore),
    ("save_and_continue", lifecycle::save_and_continue),
    ("kill", endings::kill),
    ("killed_by_another", endings::killed_by_another),
    ("a_dropped_vm_lives_on", adoption::a_dropped_vm_lives_on),
    ("adopted_by_another_driver", adoption::adopted_by_another_driver),
    ("a_stranger_is_not_adopted", adoption::a_stranger_is_not_adopted),
    ("damaged_state", faults::damaged_state),
    ("missing_state", faults::missing_state),
    ("missing_disk", faults::missing_disk),
    ("save_while_running", faults::save_while_running),
    ("a_start_given_up", faults::a_start_given_up),
    ("memory_that_comes_late", lifecycle::memory_that_comes_late),
];

/// For drivers with guests and processes of their own.
const GUEST_CASES: &[(&str, Case)] = &[
    ("confinement", lifecycle::confinement),
    ("console", lifecycle::console),
    ("three_forks", copies::three_forks),
    ("back_to_a_snapshot", copies::back_to_a_snapshot),
    ("a_larger_disk", limits::a_larger_disk),
    ("limits", limits::limits),
    ("guest_panic", endings::guest_panic),
    ("guest_power_off", endings::guest_power_off),
    ("guest_reboot", endings::guest_reboot),
    ("an_unconfined_process_is_ended", adoption::an_unconfined_process_is_ended),
    ("adopted_guest_power_off", adoption::adopted_guest_power_off),
    ("one_disk_one_machine", faults::one_disk_one_machine),
    ("missing_kernel", faults::missing_kernel),
    ("memory_of_another_size", faults::memory_of_another_size),
    ("memory_that_never_comes", faults::memory_that_never_comes),
];

/// For those that can be slowed down, and whose restore maps memory by itself.
const CLOUD_CASES: &[(&str, Case)] = &[
    ("a_slow_disk_is_slow", limits::a_slow_disk_is_slow),
    ("size_does_not_matter", limits::size_does_not_matter),
    ("a_hypervisor_that_dies_while_it_loads", faults::a_hypervisor_that_dies_while_it_loads),
];

/// For the one that emulates CPUs.
const TCG_CASES: &[(&str, Case)] =
    &[("a_boot_beside_other_work_knows_its_timer", timer::a_boot_beside_other_work_knows_its_timer)];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A booting guest takes a CPU; more at once only reach their limits.
    arguments.test_threads = arguments.test_threads.or(Some(2));
    let mut trials = Vec::new();
    let drivers = [
        (FAKE, find_fake(), &[CASES][..]),
        (QEMU_TCG, find_qemu_tcg(), &[CASES, GUEST_CASES, TCG_CASES][..]),
        (QEMU_KVM, find_qemu_kvm(), &[CASES, GUEST_CASES][..]),
        (CLOUD_HYPERVISOR, find_cloud_hypervisor(), &[CASES, GUEST_CASES, CLOUD_CASES][..]),
    ];
    for (name, found, cases) in &drivers {
        match found {
            Ok(subject) => println!("runs: {name}: {}", subject.version()),
            Err(missing) => println!("skipped: {name}: {missing}"),
        }
        for cases in *cases {
            trials.extend(self::trials(name, found.as_ref().ok(), cases));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Those of a driver that is missing are reported as ignored, never as passed.
fn trials(driver: &str, subject: Option<&Subject>, cases: &[(&str, Case)]) -> Vec<Trial> {
    let subject = subject.cloned();
    let trial = |(name, case): &(&str, Case)| {
        let (case, subject) = (*case, subject.clone());
        let missing = subject.is_none();
        Trial::test(format!("{driver}::{name}"), move || {
            let subject = subject.ok_or("the driver is not there")?;
            case(&subject).map_err(|error| format!("{error:#}").into())
        })
        .with_ignored_flag(missing)
    };
    cases.iter().map(trial).collect()
}

/// A runtime of a case's own. Dropped, it takes the drivers' tasks and sockets
/// with it, as the end of hostd would.
fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

fn block_on(case: impl Future<Output = Result<()>>) -> Result<()> {
    runtime()?.block_on(case)
}

/// For docs/drivers.md: `cargo test -p berth-hypervisor --test contract -- --nocapture`.
fn timing(subject: &Subject, what: &str, begun: Instant) {
    let driver = subject.name();
    eprintln!("timing: {driver}: {what}: {:.1} ms", begun.elapsed().as_secs_f64() * 1000.0);
}
