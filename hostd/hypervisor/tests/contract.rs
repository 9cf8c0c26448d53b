//! The contract of [`berth_hypervisor`]: one set of cases, run against every
//! driver that this host has. Cases about guests need one, so the fake sits
//! them out.

#[path = "contract/adoption.rs"]
mod adoption;
#[path = "contract/endings.rs"]
mod endings;
#[path = "contract/faults.rs"]
mod faults;
#[path = "contract/lifecycle.rs"]
mod lifecycle;
mod support;

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use std::{path::PathBuf, process::ExitCode};
use support::machine::{Subject, detect};

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
];

/// For drivers with guests and processes of their own.
const GUEST_CASES: &[(&str, Case)] = &[
    ("confinement", lifecycle::confinement),
    ("guest_panic", endings::guest_panic),
    ("guest_power_off", endings::guest_power_off),
    ("guest_reboot", endings::guest_reboot),
    ("adopted_guest_power_off", adoption::adopted_guest_power_off),
    ("one_disk_one_machine", faults::one_disk_one_machine),
    ("missing_kernel", faults::missing_kernel),
    ("memory_of_another_size", faults::memory_of_another_size),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A booting guest takes a CPU; more at once only reach their limits.
    arguments.test_threads = arguments.test_threads.or(Some(2));
    let mut trials = trials("fake", &Subject::Fake, CASES, None);
    let (subject, missing) = qemu();
    if let Some(missing) = &missing {
        println!("skipped: qemu: {missing}");
    }
    for cases in [CASES, GUEST_CASES] {
        trials.extend(self::trials("qemu", &subject, cases, missing.as_deref()));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(driver: &str, subject: &Subject, cases: &[(&str, Case)], missing: Option<&str>) -> Vec<Trial> {
    let trial = |(name, case): &(&str, Case)| {
        let (case, subject) = (*case, subject.clone());
        Trial::test(format!("{driver}::{name}"), move || {
            case(&subject).map_err(|error| format!("{error:#}").into())
        })
        .with_ignored_flag(missing.is_some())
    };
    cases.iter().map(trial).collect()
}

/// QEMU with an image, or what is missing.
fn qemu() -> (Subject, Option<String>) {
    let image = std::env::var_os("BERTH_TEST_IMAGE")
        .map_or_else(|| PathBuf::from("/var/lib/berth/images/debian"), PathBuf::from);
    let missing = if !rustix::process::geteuid().is_root() {
        Some("needs root".to_owned())
    } else if let Some(file) = ["vmlinux", "initrd", "disk"].iter().find(|file| !image.join(file).exists()) {
        Some(format!("no {}: run `berth image build`", image.join(file).display()))
    } else {
        detect().err().map(|error| error.to_string())
    };
    (Subject::Qemu { image }, missing)
}

/// A runtime of a case's own. Dropped, it takes the drivers' tasks and sockets
/// with it, as the end of hostd would.
fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

fn block_on(case: impl Future<Output = Result<()>>) -> Result<()> {
    runtime()?.block_on(case)
}
