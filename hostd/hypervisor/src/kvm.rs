//! Is there a KVM that runs ordinary guests?
//!
//! That /dev/kvm opens says little. On a host that is itself a guest (nested
//! PVM) the device is there and a guest's user code runs, but its kernel is
//! interpreted, and dies at the first instruction that the interpreter lacks.
//! So a guest of five instructions is run: two of them are ones that every CPU
//! with virtualisation has and KVM's interpreter has not.

use kvm_bindings::{KVM_API_VERSION, kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

const DEVICE: &str = "/dev/kvm";
const PAGE: usize = 4096;
/// Where the guest says what it has counted.
const PORT: u16 = 0x10;
const BITS: u32 = 0x5a5a;
/// 32-bit code at address 0, in ring 0.
const GUEST: &[u8] = &[
    0xb9, 0x5a, 0x5a, 0x00, 0x00, // mov ecx, BITS
    0xf3, 0x0f, 0xb8, 0xc1, // popcnt eax, ecx
    0x9b, // fwait
    0xe6, 0x10, // out PORT, al
    0xf4, // hlt
];
/// Three pages that no guest uses, which old Intel CPUs need for themselves.
const TSS: usize = 0xfffb_d000;

/// How a process that is nobody gets at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The group that may open it; `None`: everybody may.
    pub group: Option<u32>,
}

#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("{DEVICE} is not there: load kvm_intel or kvm_amd, or switch on virtualisation in the firmware")]
    Missing,
    #[error("{DEVICE} cannot be opened ({0}): run as root")]
    Open(#[source] io::Error),
    #[error("{DEVICE} does not answer as KVM does ({operation}: {source})")]
    Broken {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(
        "{DEVICE} is there but does not run a guest's kernel on the CPU ({how}; {flags}): \
         this host is probably a guest itself, without nested virtualisation"
    )]
    Emulated { how: String, flags: &'static str },
    #[error(
        "{DEVICE} has mode {mode:03o} and group {group}, and machines run as users of their own: \
         'chgrp kvm {DEVICE} && chmod 0660 {DEVICE}'"
    )]
    Closed { mode: u32, group: u32 },
}

/// Runs the guest. Takes about a millisecond.
pub fn prove() -> Result<Access, Unusable> {
    if !Path::new(DEVICE).exists() {
        return Err(Unusable::Missing);
    }
    match run()? {
        Ended::Counted => access(),
        Ended::Otherwise(how) => Err(Unusable::Emulated { how, flags: flags() }),
    }
}

/// Whether the device is open to processes that are not root's. Only for those
/// who know that it works.
pub fn access() -> Result<Access, Unusable> {
    let found = fs::metadata(DEVICE).map_err(Unusable::Open)?;
    let (mode, group) = (found.permissions().mode() & 0o777, found.gid());
    let both = |shift: u32| (mode >> shift) & 0o6 == 0o6;
    match (both(0), both(3), group) {
        (true, ..) => Ok(Access { group: None }),
        // Group 0 opens more than a device.
        (false, true, group) if group != 0 => Ok(Access { group: Some(group) }),
        _ => Err(Unusable::Closed { mode, group }),
    }
}

fn flags() -> &'static str {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if text.split_whitespace().any(|word| word == "vmx" || word == "svm") {
        "/proc/cpuinfo has vmx or svm"
    } else {
        "/proc/cpuinfo has neither vmx nor svm"
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Counted,
    Otherwise(String),
}

fn run() -> Result<Ended, Unusable> {
    let kvm = Kvm::new().map_err(|error| Unusable::Open(error.into()))?;
    if kvm.get_api_version() != KVM_API_VERSION.cast_signed() {
        return Err(broken("asking its version", io::ErrorKind::Unsupported.into()));
    }
    let page = Page::new().map_err(|error| broken("taking memory", error))?;
    let vm = kvm.create_vm().map_err(|error| broken("making a machine", error.into()))?;
    // Only Intel's needs it, and only some of those.
    let _ = vm.set_tss_address(TSS);
    page.lend(&vm)?;
    let mut vcpu = vm.create_vcpu(0).map_err(|error| broken("making a CPU", error.into()))?;
    start_at_zero(&vcpu)?;
    Ok(match vcpu.run() {
        Ok(VcpuExit::IoOut(PORT, [count])) if u32::from(*count) == BITS.count_ones() => Ended::Counted,
        Ok(VcpuExit::InternalError) => {
            Ended::Otherwise("it met an instruction that it cannot emulate".into())
        }
        Ok(exit) => Ended::Otherwise(format!("it stopped with {exit:?}")),
        Err(error) => Ended::Otherwise(format!("it stopped with an error: {error}")),
    })
}

fn broken(operation: &'static str, source: io::Error) -> Unusable {
    Unusable::Broken { operation, source }
}

/// Flat 32-bit segments, protected mode: what hardware runs by itself. In real
/// mode some CPUs leave even honest guests to the interpreter.
fn start_at_zero(vcpu: &VcpuFd) -> Result<(), Unusable> {
    let failed = |error: kvm_ioctls::Error| broken("setting a CPU up", error.into());
    let mut special = vcpu.get_sregs().map_err(failed)?;
    let data = kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: 16,
        type_: 3,
        present: 1,
        s: 1,
        db: 1,
        g: 1,
        ..Default::default()
    };
    special.cs = kvm_segment { selector: 8, type_: 11, ..data };
    (special.ds, special.es, special.ss) = (data, data, data);
    special.cr0 |= 1;
    vcpu.set_sregs(&special).map_err(failed)?;
    vcpu.set_regs(&kvm_regs { rip: 0, rflags: 2, ..Default::default() }).map_err(failed)
}

/// The guest's whole memory.
struct Page(*mut std::ffi::c_void);

impl Page {
    #[allow(unsafe_code)]
    fn new() -> io::Result<Self> {
        // SAFETY: a fresh mapping wherever the kernel likes, which only this
        // value knows; the guest's code is shorter than it.
        unsafe {
            let page = mmap_anonymous(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?;
            std::ptr::copy_nonoverlapping(GUEST.as_ptr(), page.cast(), GUEST.len());
            Ok(Self(page))
        }
    }

    #[allow(unsafe_code)]
    fn lend(&self, vm: &VmFd) -> Result<(), Unusable> {
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: PAGE as u64,
            userspace_addr: self.0 as u64,
        };
        // SAFETY: the page is mapped for as long as this value lives, and `run`
        // made it before the machine, so that it outlives it.
        unsafe { vm.set_user_memory_region(region) }.map_err(|error| broken("lending memory", error.into()))
    }
}

impl Drop for Page {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and nobody refers to it.
        let _ = unsafe { munmap(self.0, PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_a_sentence() {
        match prove() {
            Ok(_) => {}
            Err(error) => assert!(error.to_string().contains(DEVICE), "{error}"),
        }
    }

    #[test]
    fn without_hardware_it_is_not_believed() {
        if Path::new(DEVICE).exists() && flags().contains("neither") {
            assert!(!matches!(run(), Ok(Ended::Counted)));
        }
    }
}
