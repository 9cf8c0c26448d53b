//! The last steps of a process in a jail: it gives up everything and becomes the
//! hypervisor. The order matters: what needs root comes first.

use crate::room;
use berth_hypervisor::jail::wire::{FIRST, Limits, Order};
use nix::libc;
use rustix::{
    fs::{Gid, Mode, Uid},
    io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
    mount::MountFlags,
    process::{Resource, Rlimit, setrlimit},
    thread::{
        CapabilitySet, CapabilitySets, LinkNameSpaceType, clear_ambient_capability_set,
        move_into_link_name_space, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::Command,
};

/// CPU time at real-time priority without a rest, in microseconds. A boot has that priority for some seconds; the kernel
/// ends a hypervisor that keeps it because hostd, which would have taken it away, has died.
const REAL_TIME: u64 = 20_000_000;
/// More bits than there are capabilities.
const CAPABILITIES: u32 = 64;

/// System calls that no hypervisor of ours makes once it is one, and that are ways
/// into the kernel or to other processes. QEMU's own filter comes on top, and is longer.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Returns only if something failed.
pub fn execute(order: Order, descriptors: Vec<OwnedFd>) -> Result<Infallible, String> {
    let short = || "the order has too few descriptors".to_owned();
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(short);
    // 1. What is the machine's.
    let network = next()?;
    room::show(&order.directory, next()?.as_fd(), MountFlags::empty())?;
    for file in &order.files {
        room::show(file, next()?.as_fd(), MountFlags::RDONLY)?;
    }
    room::close()?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| format!("entering the machine's network: {error}"))?;
    let [stdin, stdout, stderr] = [next()?, next()?, next()?];
    let kept = keep(descriptors).map_err(|error| format!("handing descriptors over: {error}"))?;
    let directory = &order.directory;
    rustix::process::chdir(directory)
        .map_err(|error| format!("entering {}: {error}", directory.display()))?;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    limit(order.limits).map_err(|error| format!("setting limits: {error}"))?;
    // 2. Every privilege.
    unprivileged(order.uid, &order.groups).map_err(|error| format!("giving up privileges: {error}"))?;
    for filter in filters().map_err(|error| format!("making a filter: {error}"))? {
        seccompiler::apply_filter(&filter).map_err(|error| format!("setting a filter: {error}"))?;
    }
    // 3. Itself.
    let (name, arguments) = order.arguments.split_first().ok_or("the program has no name")?;
    let mut program = Command::new(&order.program);
    program.arg0(name).args(arguments).env_clear().envs(order.environment);
    let error = program.stdin(stdin).stdout(stdout).stderr(stderr).exec();
    drop(kept);
    Err(error.to_string())
}

/// Gives the program's descriptors the numbers that its arguments speak of. All others
/// are closed when it is executed.
fn keep(descriptors: impl Iterator<Item = OwnedFd>) -> Result<Vec<OwnedFd>, Errno> {
    let mut kept = Vec::new();
    for (number, descriptor) in (FIRST..).zip(descriptors) {
        let copy = fcntl_dupfd_cloexec(&descriptor, number)?;
        if copy.as_raw_fd() != number {
            return Err(Errno::BADF);
        }
        fcntl_setfd(&copy, FdFlags::empty())?;
        kept.push(copy);
    }
    Ok(kept)
}

fn limit(limits: Limits) -> Result<(), Errno> {
    let most = |most| Rlimit { current: Some(most), maximum: Some(most) };
    // One byte, which is too few for a file and, unlike 0, keeps a core from being
    // handed to a program of the host.
    setrlimit(Resource::Core, most(1))?;
    setrlimit(Resource::Fsize, most(limits.file_size))?;
    setrlimit(Resource::Nofile, most(limits.descriptors))?;
    setrlimit(Resource::Nproc, most(limits.threads))?;
    setrlimit(Resource::Msgqueue, most(0))?;
    setrlimit(Resource::Nice, most(0))?;
    setrlimit(Resource::Rtprio, most(0))?;
    setrlimit(Resource::Rttime, most(REAL_TIME))
}

/// This is the process's only thread, so what changes is the process's.
fn unprivileged(uid: u32, groups: &[u32]) -> Result<(), Errno> {
    if uid == 0 {
        return Err(Errno::PERM);
    }
    for bit in 0..CAPABILITIES {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            // The kernel knows no more of them.
            Err(Errno::INVAL) => break,
            other => other?,
        }
    }
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    let groups: Vec<_> = groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups)?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_no_new_privs(true)
}

/// A namespace of a user's own comes with every capability in it, also where none can be
/// gained.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// A socket of any kind but the local one is refused too: a hypervisor has its links and
/// its control socket as descriptors. `clone3` has its flags in memory, where no filter
/// sees them: it is said not to be there, and libc takes `clone`.
fn filters() -> Result<[BpfProgram; 2], BackendError> {
    use SeccompCmpOp::{MaskedEq, Ne};
    let when = |argument: u8, is: SeccompCmpOp, value: libc::c_int| {
        let value = u64::from(value.unsigned_abs());
        SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)?])
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_socket, vec![when(0, Ne, libc::AF_UNIX)?]);
    let makes = |flag: libc::c_int| when(0, MaskedEq(u64::from(flag.unsigned_abs())), flag);
    rules.insert(libc::SYS_clone, NAMESPACES.into_iter().map(makes).collect::<Result<_, _>>()?);
    let missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    Ok([program(missing, libc::ENOSYS)?, program(rules, libc::EPERM)?])
}

fn program(rules: BTreeMap<i64, Vec<SeccompRule>>, error: libc::c_int) -> Result<BpfProgram, BackendError> {
    let refuse = SeccompAction::Errno(error.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, std::env::consts::ARCH.try_into()?)?.try_into()
}
