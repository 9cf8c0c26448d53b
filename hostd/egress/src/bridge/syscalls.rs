//! The system calls that the bridge is left with: sockets, waiting, memory, threads.

use libc::{c_long, *};
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::{collections::BTreeMap, io};

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// With any arguments.
const ALLOWED: &[c_long] = &[
    // Sockets; which may be made is below.
    SYS_accept4,
    SYS_bind,
    SYS_connect,
    SYS_getpeername,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_sendmsg,
    SYS_sendto,
    SYS_setsockopt,
    SYS_shutdown,
    // What is open already.
    SYS_close,
    SYS_dup,
    SYS_fcntl,
    SYS_fstat,
    SYS_newfstatat,
    SYS_pipe2,
    SYS_read,
    SYS_readv,
    SYS_splice,
    SYS_write,
    SYS_writev,
    // Waiting.
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_futex,
    SYS_nanosleep,
    SYS_ppoll,
    SYS_restart_syscall,
    SYS_sched_yield,
    // Memory, none of it executable.
    SYS_brk,
    SYS_madvise,
    SYS_mremap,
    SYS_munmap,
    // Threads, and their end.
    SYS_clone3,
    SYS_exit,
    SYS_exit_group,
    SYS_getpid,
    SYS_getrandom,
    SYS_gettid,
    SYS_membarrier,
    SYS_rseq,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sched_getaffinity,
    SYS_set_robust_list,
    SYS_sigaltstack,
];

/// These remain where a CPU has calls that newer ones do without.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[SYS_epoll_wait, SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// For the calling thread and those that it starts from now on. What is not allowed fails
/// with EPERM: a library that tries something new does without it.
pub fn restrict() -> io::Result<()> {
    let install = || -> Result<(), Error> {
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        // Its flags are in memory, where no filter sees them; libc falls back to clone.
        let hidden = Rules::from([(SYS_clone3, Vec::new())]);
        let refuse = |number: c_int| SeccompAction::Errno(u32::try_from(number).unwrap_or_default());
        let hides = SeccompFilter::new(hidden, SeccompAction::Allow, refuse(ENOSYS), arch)?;
        let allows = SeccompFilter::new(allowed()?, refuse(EPERM), SeccompAction::Allow, arch)?;
        for filter in [hides, allows] {
            let program = BpfProgram::try_from(filter)?;
            seccompiler::apply_filter(&program)?;
        }
        Ok(())
    };
    install().map_err(io::Error::other)
}

fn allowed() -> Result<Rules, Error> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let mut rules: Rules = ALLOWED.iter().chain(ALLOWED_HERE).map(|call| (*call, Vec::new())).collect();
    let mut when = |call: c_long, argument: u8, is: SeccompCmpOp, value: c_int| {
        let value = u64::from(value.cast_unsigned());
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)?;
        rules.entry(call).or_default().push(SeccompRule::new(vec![condition])?);
        Ok::<_, Error>(())
    };
    // TCP to servers and UDP to resolvers; no netlink, packets, or sockets of the host's.
    for family in [AF_INET, AF_INET6] {
        when(SYS_socket, 0, Eq, family)?;
    }
    // The runtime's own pair for signals.
    when(SYS_socketpair, 0, Eq, AF_UNIX)?;
    for call in [SYS_mmap, SYS_mprotect] {
        when(call, 2, MaskedEq(u64::from(PROT_EXEC.cast_unsigned())), 0)?;
    }
    // Threads, not processes.
    when(SYS_clone, 0, MaskedEq(u64::from(CLONE_THREAD.cast_unsigned())), CLONE_THREAD)?;
    let own = c_int::try_from(std::process::id()).unwrap_or_default();
    when(SYS_tgkill, 0, Eq, own)?;
    when(SYS_ioctl, 1, Eq, c_int::try_from(FIONBIO).unwrap_or_default())?;
    when(SYS_prctl, 0, Eq, PR_SET_NAME)?;
    // Its limits are read, not set.
    when(SYS_prlimit64, 2, Eq, 0)?;
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, net, os::unix, process::Command};

    #[test]
    fn a_restricted_thread_has_sockets_and_nothing_of_the_hosts() {
        let restricted = std::thread::spawn(|| {
            restrict().unwrap();
            // What a proxy does.
            let socket = net::UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            assert!(std::thread::spawn(|| vec![7; 1 << 20].len()).join().unwrap() == 1 << 20);
            // What it never does.
            let raw =
                rustix::net::socket(rustix::net::AddressFamily::NETLINK, rustix::net::SocketType::RAW, None);
            [
                ("open", fs::read("/proc/self/stat").map(drop)),
                ("exec", Command::new("/bin/true").status().map(drop)),
                ("unix", unix::net::UnixStream::connect("/run/dbus/system_bus_socket").map(drop)),
                ("netlink", raw.map(drop).map_err(Into::into)),
                ("unshare", nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(Into::into)),
                ("chroot", nix::unistd::chroot("/").map_err(Into::into)),
                ("unlink", fs::remove_file("/tmp/berth-no-such-file")),
                ("kill", nix::sys::signal::kill(nix::unistd::Pid::from_raw(1), None).map_err(Into::into)),
            ]
        });
        for (what, done) in restricted.join().unwrap() {
            let error = done.map_err(|error| error.raw_os_error());
            assert_eq!(error, Err(Some(EPERM)), "{what}");
        }
    }
}
