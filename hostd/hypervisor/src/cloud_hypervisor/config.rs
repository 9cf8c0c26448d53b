//! What Cloud Hypervisor is told of a machine: pure, so that it can be read and
//! tested on its own.
//!
//! The same description serves a boot and a restore. The one that a snapshot
//! writes beside the devices is not read again: it was written by the least
//! trusted process on the host, and today's rates are the operator's of today.

use super::{CloudHypervisor, Rate, Settings};
use crate::{
    Launch,
    files::{DISK, RAM},
};
use berth_guest_protocol::{CTL_GUEST_MAC, ETH_GUEST_MAC};
use cloud_hypervisor_client::models::{
    BalloonConfig, ConsoleConfig, ConsoleMode, CpusConfig, DiskConfig, ImageType, LandlockConfig,
    MemoryConfig, MemoryZoneConfig, NetConfig, PayloadConfig, RateLimiterConfig, SerialConfig, TokenBucket,
    VmConfig,
};
use serde_json::{Value, json};
use std::path::Path;

/// As requests name the disk.
pub(super) const DISK_ID: &str = "disk";
/// In the order of their descriptors.
pub(super) const LINKS: [(&str, [u8; 6]); 2] = [("ctl", CTL_GUEST_MAC), ("eth", ETH_GUEST_MAC)];
const SECOND_MS: i64 = 1000;

pub(super) struct Machine<'a> {
    pub(super) settings: &'a Settings,
    pub(super) cpus: u32,
    /// In bytes, whole MiB.
    pub(super) memory: u64,
    pub(super) kernel: &'a Path,
    pub(super) initrd: &'a Path,
    /// Whether the pool takes reads and writes past the page cache.
    pub(super) direct: bool,
    /// Whether the host can keep the process from other files.
    pub(super) landlock: bool,
}

impl<'a> Machine<'a> {
    pub(super) fn new(driver: &'a CloudHypervisor, launch: &'a Launch, memory: u64, direct: bool) -> Self {
        Self {
            settings: &driver.settings,
            cpus: launch.cpus,
            memory,
            kernel: &launch.kernel,
            initrd: &launch.initrd,
            direct,
            landlock: driver.landlock,
        }
    }

    /// For `vm.create`. The links are added to it with their descriptors.
    pub(super) fn to_boot(&self) -> VmConfig {
        let cpus = i32::try_from(self.cpus).unwrap_or(i32::MAX);
        let zone = MemoryZoneConfig {
            file: Some(RAM.to_owned()),
            // What makes a snapshot leave RAM where it is.
            shared: Some(true),
            ..MemoryZoneConfig::new("ram".to_owned(), signed(self.memory))
        };
        VmConfig {
            // Guests' own virtualisation is not saved by every host.
            cpus: Some(CpusConfig { nested: Some(false), ..CpusConfig::new(cpus, cpus) }),
            memory: Some(MemoryConfig { zones: Some(vec![zone]), ..MemoryConfig::new(0) }),
            disks: Some(vec![self.disk()]),
            // Never inflated by us; free pages are reported, and go back to the host.
            balloon: Some(BalloonConfig {
                deflate_on_oom: Some(true),
                free_page_reporting: Some(true),
                ..BalloonConfig::new(0)
            }),
            // Standard output is the console's log, opened to append: the
            // program's own way to a file would empty it at every start.
            serial: Some(SerialConfig::new(ConsoleMode::Tty)),
            console: Some(ConsoleConfig::new(ConsoleMode::Off)),
            landlock_enable: Some(self.landlock),
            // Its own directory, for the device state that it saves.
            landlock_rules: Some(vec![LandlockConfig::new(".".to_owned(), "rw".to_owned())]),
            ..VmConfig::new(PayloadConfig {
                kernel: Some(text(self.kernel)),
                initramfs: Some(text(self.initrd)),
                cmdline: Some(self.kernel_line()),
                ..PayloadConfig::new()
            })
        }
    }

    /// For `config.json` beside the devices of a restore.
    pub(super) fn to_restore(&self) -> serde_json::Result<Value> {
        let mut whole = serde_json::to_value(self.to_boot())?;
        let links = (0..LINKS.len()).filter_map(|index| {
            let mut link = self.link(index)?;
            // Stands for the descriptor that comes with the request.
            link.as_object_mut()?.insert("fds".to_owned(), json!([-1]));
            Some(link)
        });
        let links: Vec<Value> = links.collect();
        if let Some(whole) = whole.as_object_mut() {
            whole.insert("net".to_owned(), Value::Array(links));
        }
        Ok(whole)
    }

    /// For `vm.add-net`.
    pub(super) fn link(&self, index: usize) -> Option<Value> {
        let (id, mac) = LINKS.get(index)?;
        let link = NetConfig {
            id: Some((*id).to_owned()),
            mac: Some(mac.map(|byte| format!("{byte:02x}")).join(":")),
            rate_limiter_config: limiter(self.settings.link),
            ..NetConfig::new()
        };
        serde_json::to_value(link).ok()
    }

    fn disk(&self) -> DiskConfig {
        DiskConfig {
            id: Some(DISK_ID.to_owned()),
            path: Some(DISK.to_owned()),
            image_type: Some(ImageType::Raw),
            direct: Some(self.direct),
            // Blocks that the guest discards go back to the pool.
            sparse: Some(true),
            rate_limiter_config: limiter(self.settings.disk),
            ..DiskConfig::new()
        }
    }

    fn kernel_line(&self) -> String {
        // loglevel=1: silent until the kernel dies. panic=-1, reboot=k: a dead
        // kernel resets the machine at once, by the keyboard controller.
        let line = "console=ttyS0 quiet loglevel=1 panic=-1 reboot=k random.trust_cpu=on ipv6.disable=1 \
                    cryptomgr.notests rcupdate.rcu_expedited=1 psi=0 lsm=landlock";
        format!("{line} {}", self.settings.kernel_arguments).trim_end().to_owned()
    }
}

fn limiter(rate: Rate) -> Option<RateLimiterConfig> {
    let bucket = |size: u64| (size > 0).then(|| TokenBucket::new(signed(size), SECOND_MS));
    let (bandwidth, ops) = (bucket(rate.bytes.bytes()), bucket(rate.operations));
    (bandwidth.is_some() || ops.is_some()).then_some(RateLimiterConfig { bandwidth, ops })
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::ByteSize;

    fn machine(settings: &Settings) -> Machine<'_> {
        Machine {
            settings,
            cpus: 2,
            memory: 512 << 20,
            kernel: Path::new("/images/a b/vmlinux"),
            initrd: Path::new("/images/a b/initrd"),
            direct: true,
            landlock: true,
        }
    }

    #[test]
    fn memory_is_the_file_and_nothing_else() {
        let boot = serde_json::to_value(machine(&Settings::default()).to_boot()).unwrap();
        assert_eq!(boot["memory"]["size"], 0);
        let zone = &boot["memory"]["zones"][0];
        assert_eq!(
            (&zone["file"], &zone["shared"], &zone["size"]),
            (&json!("ram"), &json!(true), &json!(512 << 20))
        );
    }

    #[test]
    fn a_restore_differs_by_its_links_only() {
        let settings = Settings::default();
        let mut restore = machine(&settings).to_restore().unwrap();
        let links = restore.as_object_mut().unwrap().remove("net").unwrap();
        assert_eq!(restore, serde_json::to_value(machine(&settings).to_boot()).unwrap());
        assert_eq!(links[0]["mac"], "02:be:27:00:00:02");
        assert_eq!((&links[0]["id"], &links[0]["fds"]), (&json!("ctl"), &json!([-1])));
        assert_eq!((&links[1]["id"], &links[1]["mac"]), (&json!("eth"), &json!("02:be:27:00:01:02")));
    }

    #[test]
    fn rates_are_set_where_there_are_any() {
        let plain = machine(&Settings::default()).to_boot();
        assert_eq!(plain.disks.unwrap()[0].rate_limiter_config, None);
        let disk = Rate { bytes: ByteSize::mib(100), operations: 0 };
        let settings =
            Settings { disk, link: Rate { operations: 9, ..Rate::default() }, ..Settings::default() };
        let limited = machine(&settings).to_boot().disks.unwrap()[0].rate_limiter_config.clone().unwrap();
        assert_eq!(limited.bandwidth.unwrap(), TokenBucket::new(100 << 20, 1000));
        assert_eq!(limited.ops, None);
        assert_eq!(machine(&settings).link(1).unwrap()["rate_limiter_config"]["ops"]["size"], 9);
    }

    #[test]
    fn an_operators_words_come_last() {
        let settings = Settings { kernel_arguments: "noxsave".to_owned(), ..Settings::default() };
        let line = machine(&settings).to_boot().payload.cmdline.unwrap();
        assert!(line.starts_with("console=ttyS0") && line.ends_with(" noxsave"), "{line}");
    }
}
