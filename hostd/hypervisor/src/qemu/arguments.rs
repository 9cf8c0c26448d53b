//! QEMU's command line: pure, so that it can be read and tested on its own.
//!
//! All paths of the machine are relative to its directory, and its links and
//! control socket are descriptors: a clone of the directory runs unchanged.

use super::{Settings, detect::Accelerator};
use crate::{
    Origin,
    files::{CONSOLE, DISK, RAM},
};
use berth_guest_protocol::{CTL_GUEST_MAC, ETH_GUEST_MAC};
use std::{ffi::OsString, os::fd::RawFd, path::Path};

/// Translated code that a machine under TCG may cache, in MiB: about what its
/// process takes beside the guest's memory. QEMU's own choice is up to 1 GiB,
/// which nobody would have accounted for.
const TRANSLATION_CACHE: u32 = 128;

/// Emulation moves one unit per step of a string instruction. A guest that
/// believes byte moves to be fast copies with them; one that does not, by words.
const EMULATED_CPU: &str = "max,erms=off,fsrm=off";

pub(super) struct Arguments<'a> {
    pub(super) settings: &'a Settings,
    pub(super) name: &'a str,
    /// Of this process: another one's guest sees that it is another one's.
    pub(super) identity: &'a str,
    pub(super) accelerator: Accelerator,
    pub(super) firmware: &'a Path,
    pub(super) tsc_khz: u32,
    pub(super) cpus: u32,
    /// In bytes, whole MiB.
    pub(super) memory: u64,
    pub(super) kernel: &'a Path,
    pub(super) initrd: &'a Path,
    pub(super) origin: Origin,
    pub(super) qmp: RawFd,
    pub(super) ctl_tap: RawFd,
    pub(super) eth_tap: RawFd,
}

impl Arguments<'_> {
    pub(super) fn to_line(&self) -> Vec<OsString> {
        let mut line = Vec::with_capacity(64);
        let mut text = |values: &[&str]| line.extend(values.iter().map(OsString::from));
        text(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        text(&["-name", &format!("guest={},debug-threads=on", self.name)]);
        if !self.identity.is_empty() {
            text(&["-uuid", self.identity]);
        }
        text(&["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]);
        let (accelerator, model) = match self.accelerator {
            Accelerator::Kvm => ("kvm".to_owned(), "host"),
            Accelerator::Tcg => (format!("tcg,thread=multi,tb-size={TRANSLATION_CACHE}"), EMULATED_CPU),
        };
        let features = self.settings.cpu_features.trim();
        let separator = if features.is_empty() { "" } else { "," };
        text(&["-accel", &accelerator, "-cpu", &format!("{model}{separator}{features}")]);
        text(&["-smp", &self.cpus.to_string(), "-m", &format!("{}M", self.memory >> 20)]);
        text(&[
            "-object",
            &format!("memory-backend-file,id=ram,share=on,mem-path={RAM},size={},prealloc=off", self.memory),
        ]);
        text(&["-M", "microvm,rtc=on,pic=off,isa-serial=on,memory-backend=ram"]);
        // The image lock stays on: a second start on the same disk must fail. A
        // write that fails, on a full pool too, fails in the guest, which stays
        // within reach; QEMU would stop it for ever.
        text(&[
            "-drive",
            &format!(
                "id=disk,if=none,format=raw,cache=writeback,aio=threads,discard=unmap,\
                 werror=report,rerror=report,file={DISK}"
            ),
            "-device",
            "virtio-blk-device,drive=disk",
        ]);
        text(&["-netdev", &tap("ctl", self.ctl_tap), "-device", &nic("ctl", CTL_GUEST_MAC)]);
        text(&["-netdev", &tap("eth", self.eth_tap), "-device", &nic("eth", ETH_GUEST_MAC)]);
        text(&["-object", "rng-builtin,id=rng", "-device", "virtio-rng-device,rng=rng"]);
        text(&[
            "-chardev",
            &format!("file,id=console,append=on,path={CONSOLE}"),
            "-serial",
            "chardev:console",
        ]);
        text(&["-chardev", &format!("socket,id=qmp,server=on,wait=off,fd={}", self.qmp)]);
        text(&["-mon", "chardev=qmp,mode=control"]);
        let mut files = vec![("-bios", self.firmware)];
        match self.origin {
            Origin::Boot => {
                text(&["-append", &self.kernel_line()]);
                // No vCPU runs before its process was seen to be confined.
                text(&["-S"]);
                files.extend([("-kernel", self.kernel), ("-initrd", self.initrd)]);
            }
            // What it booted from is long in its memory; reading 50 MB of it
            // again was half of QEMU's start.
            Origin::Saved => text(&["-incoming", "defer"]),
        }
        for (option, path) in files {
            line.extend([OsString::from(option), path.as_os_str().to_owned()]);
        }
        line
    }

    fn kernel_line(&self) -> String {
        // loglevel=1: silent until the kernel dies. At 0 not even a panic is
        // printed. panic=-1: a dead kernel ends the process at once. Pressure
        // accounting and security modules that nobody configures are in the way
        // of every system call; Landlock is for programs themselves.
        let mut line = "console=ttyS0 quiet loglevel=1 panic=-1 reboot=t random.trust_cpu=on \
                        ipv6.disable=1 cryptomgr.notests rcupdate.rcu_expedited=1 psi=0 lsm=landlock"
            .to_owned();
        if self.accelerator == Accelerator::Tcg {
            // Without the rate a guest hangs while it measures one against
            // emulated timers. Emulation has no speculation to mitigate. QEMU
            // finds what it has translated by virtual address: were programs
            // loaded at random ones, each start of a program would translate it
            // anew, and take four times as long (docs/decisions/0009).
            let khz = self.tsc_khz;
            line.push_str(&format!(
                " mitigations=off nokaslr norandmaps no_timer_check tsc=reliable tsc_early_khz={khz} lpj={}",
                u64::from(khz) * 4
            ));
        }
        line.push(' ');
        line.push_str(&self.settings.kernel_arguments);
        line.trim_end().to_owned()
    }
}

fn tap(id: &str, fd: RawFd) -> String {
    format!("tap,id={id},fd={fd},vhost=off")
}

fn nic(id: &str, mac: [u8; 6]) -> String {
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    // Nobody on its links learns where it is from announcements, which would be
    // the first thing that a resumed guest works on.
    format!("virtio-net-device,netdev={id},mac={mac},guest_announce=off")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(accelerator: Accelerator, origin: Origin) -> Vec<String> {
        line_with(&Settings::default(), accelerator, origin)
    }

    fn line_with(settings: &Settings, accelerator: Accelerator, origin: Origin) -> Vec<String> {
        Arguments {
            settings,
            name: "abcdefghijkl",
            identity: "6fb3b5f4-9d9c-4d0e-8b0e-2f6f3f6c1d52",
            accelerator,
            firmware: Path::new("/usr/share/qemu/qboot.rom"),
            tsc_khz: 2_000_000,
            cpus: 2,
            memory: 512 << 20,
            kernel: Path::new("/images/a,b/vmlinux"),
            initrd: Path::new("/images/a,b/initrd"),
            origin,
            qmp: 7,
            ctl_tap: 8,
            eth_tap: 9,
        }
        .to_line()
        .into_iter()
        .map(|argument| argument.into_string().unwrap())
        .collect()
    }

    fn after<'a>(line: &'a [String], option: &str) -> &'a str {
        &line[line.iter().position(|argument| argument == option).unwrap() + 1]
    }

    #[test]
    fn the_links_are_told_apart_by_descriptor_and_mac() {
        let line = line(Accelerator::Tcg, Origin::Boot).join(" ");
        assert!(line.contains("tap,id=ctl,fd=8"));
        assert!(line.contains("netdev=ctl,mac=02:be:27:00:00:02"));
        assert!(line.contains("tap,id=eth,fd=9"));
        assert!(line.contains("netdev=eth,mac=02:be:27:00:01:02"));
    }

    #[test]
    fn only_emulation_is_told_the_counter_rate() {
        let tcg = line(Accelerator::Tcg, Origin::Boot);
        assert!(after(&tcg, "-append").contains("tsc_early_khz=2000000 lpj=8000000"));
        let kvm = line(Accelerator::Kvm, Origin::Boot);
        assert!(!after(&kvm, "-append").contains("tsc"));
        assert!(!after(&kvm, "-append").contains("mitigations"));
    }

    #[test]
    fn only_emulation_gives_up_random_addresses() {
        assert!(after(&line(Accelerator::Tcg, Origin::Boot), "-append").contains("norandmaps"));
        assert!(!after(&line(Accelerator::Kvm, Origin::Boot), "-append").contains("norandmaps"));
    }

    #[test]
    fn a_saved_machine_waits_for_its_state() {
        let boot = line(Accelerator::Tcg, Origin::Boot);
        assert!(!boot.contains(&"-incoming".to_owned()) && boot.contains(&"-S".to_owned()));
        assert_eq!(after(&line(Accelerator::Tcg, Origin::Saved), "-incoming"), "defer");
    }

    #[test]
    fn an_operators_kernel_words_and_cpu_features_come_last() {
        let settings = Settings {
            kernel_arguments: "noxsave mitigations=off".to_owned(),
            cpu_features: "-arch-capabilities".to_owned(),
            ..Settings::default()
        };
        for (accelerator, model) in [(Accelerator::Kvm, "host"), (Accelerator::Tcg, EMULATED_CPU)] {
            let line = line_with(&settings, accelerator, Origin::Boot);
            assert!(after(&line, "-append").ends_with(" noxsave mitigations=off"));
            assert_eq!(after(&line, "-cpu"), format!("{model},-arch-capabilities"));
        }
        assert_eq!(after(&line(Accelerator::Kvm, Origin::Boot), "-cpu"), "host");
        assert!(!after(&line(Accelerator::Kvm, Origin::Boot), "-append").ends_with(' '));
    }

    #[test]
    fn commas_in_an_images_path_are_no_options() {
        assert_eq!(after(&line(Accelerator::Tcg, Origin::Boot), "-kernel"), "/images/a,b/vmlinux");
    }
}
