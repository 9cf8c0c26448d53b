//! The same machines under Cloud Hypervisor, where there is one.

use crate::{
    cases,
    context::{Case, Context},
    faults::{MINUTE, boot_id, field, hypervisor, state},
    rest::walk::every_fault_point,
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Service, cloud_hypervisor, eventually};
use std::{fs, time::Instant};

pub const CASES: &[Case] = cases![
    CloudHypervisor:
        a_whole_life,
        a_generation_of_another_driver_boots_from_its_disk,
        hostd_may_die_at_every_fault_point;
];

/// Waits until a booted machine is kept ready: two that boot at once take more
/// than twice as long.
fn until_ready(service: &Service) -> Result<()> {
    let log = service.directory().join("berth-hostd.log");
    eventually("a machine to be ready", 15 * MINUTE, || {
        Ok(fs::read_to_string(&log)?.contains("a machine of this size is ready to be copied"))
    })
}

/// Create, write, sleep, wake, fork, restore: nothing is lost, nothing boots.
fn a_whole_life(context: &Context) -> Result<()> {
    context.with_service(&cloud_hypervisor(), |service| {
        let account = service.account(context.scratch())?;
        let status = service.berth_ok(&["status"])?.text();
        ensure!(status.contains("cloud-hypervisor 53"), "{status}");
        until_ready(service)?;
        let begun = Instant::now();
        account.verb("new dev --memory 256M --disk 5G")?.ok()?;
        eprintln!("a new machine: {:?}", begun.elapsed());
        let dev = account.at("dev");
        dev.exec("echo first > note; echo first > /dev/shm/note; sync")?;
        let boot = boot_id(&dev)?;
        ensure!(
            dev.line("df --output=size -BM / | tail -1 | tr -dc 0-9")?.parse::<u32>()? > 4000,
            "not grown"
        );

        account.verb("sleep dev")?.ok()?;
        ensure!(state(&account, "dev")? == "asleep" && hypervisor(service, &account, "dev").is_err());
        let begun = Instant::now();
        ensure!(dev.line("cat note /dev/shm/note")? == "first\nfirst");
        eprintln!("from asleep to an answer over ssh: {:?}", begun.elapsed());
        ensure!(boot_id(&dev)? == boot, "it booted");

        account.verb("snapshot dev base")?.ok()?;
        no_memory_was_copied(service)?;
        dev.exec("echo second > note; echo second > /dev/shm/note; sync")?;
        let begun = Instant::now();
        account.verb("fork dev child -n 3")?.ok()?;
        eprintln!("three forks: {:?}", begun.elapsed());
        for name in ["child-1", "child-2", "child-3"] {
            let child = account.at(name);
            ensure!(child.line("cat note /dev/shm/note; hostname")? == format!("second\nsecond\n{name}"));
            child.exec(&format!("echo {name} > /dev/shm/note"))?;
        }
        ensure!(dev.line("cat /dev/shm/note")? == "second", "the source shares memory with a child");
        account.verb("restore dev base")?.ok()?;
        ensure!(dev.line("cat note /dev/shm/note")? == "first\nfirst", "not as it was");
        ensure!(boot_id(&dev)? == boot, "it booted");

        // hostd goes, the machine stays.
        let pid = hypervisor(service, &account, "dev")?;
        service.kill_hostd()?;
        service.start_hostd()?;
        ensure!(dev.line("cat /dev/shm/note")? == "first" && hypervisor(service, &account, "dev")? == pid);
        let check = service.berth_ok(&["upgrade-check"])?.text();
        ensure!(check.contains("can resume everything"), "{check}");
        account.verb("rm dev child-1 child-2 child-3")?.ok()?;
        Ok(())
    })
}

/// Device state is small, and there is no other copy of RAM than `ram`.
fn no_memory_was_copied(service: &Service) -> Result<()> {
    let mut seen = 0;
    for entry in fs::read_dir(service.data().join("pool/generations"))? {
        let generation = entry?.path();
        for file in fs::read_dir(&generation)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            ensure!(
                ["disk", "ram", "state", "touched", "synced", "manifest.json"].contains(&name.as_str()),
                "a file {name}"
            );
            if name == "state" {
                seen += 1;
                let size = file.metadata()?.len();
                ensure!(size < 1 << 20, "a device state of {size} bytes");
            }
        }
    }
    ensure!(seen > 0, "no device state");
    Ok(())
}

/// Told to whoever connects, and nothing on the disk is lost.
fn a_generation_of_another_driver_boots_from_its_disk(context: &Context) -> Result<()> {
    let settings = cloud_hypervisor().set("idle.ready", Vec::<String>::new());
    context.with_service(&settings, |service| {
        let account = service.account(context.scratch())?;
        account.verb("new dev --memory 256M")?.ok()?;
        let dev = account.at("dev");
        dev.exec("echo kept > note; sync")?;
        let boot = boot_id(&dev)?;
        account.verb("sleep dev")?.ok()?;
        service.end_hostd()?;
        let config = fs::read_to_string(service.config())?;
        let other = config.replace("driver = \"cloud-hypervisor\"", "driver = \"qemu\"");
        ensure!(other != config, "the configuration names no driver");
        let image = berth_tests::images().join("debian/vmlinux");
        let kernel = std::env::var("BERTH_TEST_CH_KERNEL")?;
        fs::write(service.config(), other.replace(&kernel, &image.display().to_string()))?;
        service.start_hostd()?;
        let stranded = service.berth_ok(&["upgrade-check"])?.text();
        ensure!(stranded.contains("dev") && stranded.contains("cloud-hypervisor 53"), "{stranded}");
        ensure!(dev.line("cat note")? == "kept", "its disk is not as it was");
        ensure!(boot_id(&dev)? != boot, "memory of another hypervisor was resumed");
        let reason = field(&account, "dev", "/failure/reason")?;
        ensure!(
            reason.contains("saved by cloud-hypervisor 53") && reason.contains("this is qemu"),
            "{reason}"
        );
        Ok(())
    })
}

/// The walk of the sleep cases, on this driver.
fn hostd_may_die_at_every_fault_point(context: &Context) -> Result<()> {
    let settings = cloud_hypervisor();
    every_fault_point(context, &settings, until_ready).context("on cloud-hypervisor")
}
