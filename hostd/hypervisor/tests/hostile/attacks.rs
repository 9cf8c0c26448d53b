//! What a hypervisor that its guest has taken over tries. It writes what each attack came
//! to into its console, which is its own.

#![allow(unsafe_code)] // Attacks are system calls that no library makes.

use nix::libc;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixStream},
    },
    path::PathBuf,
    process::ExitCode,
};

/// What there is to attack, from the machine's directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    pub victim: i32,
    pub file: PathBuf,
    pub socket: PathBuf,
    pub abstract_socket: String,
    pub shared_memory: i32,
    pub kernel: PathBuf,
    pub too_large: u64,
}

pub fn run() -> ExitCode {
    match attack_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn attack_all() -> io::Result<()> {
    let plan: Plan = serde_json::from_slice(&fs::read("state")?)?;
    let mut console = File::options().append(true).open("console.log")?;
    let mut report = |attack: &str, came_to: String| writeln!(console, "attack: {attack} = {came_to}");
    // First what looks at this process as it was started.
    report("has descriptors", descriptors())?;
    report("blocks signals", blocked())?;
    report("has an environment", std::env::vars().map(|(name, _)| name).collect::<Vec<_>>().join(" "))?;
    report("has process ids", format!("{} of {}", std::process::id(), std::os::unix::process::parent_id()))?;
    report("knows the host's name", rustix::system::uname().nodename().to_string_lossy().into_owned())?;
    report("has capabilities", capabilities())?;
    report("gains privileges", if rustix::thread::no_new_privs()? { "never" } else { "perhaps" }.to_owned())?;
    report("leaves a core", format!("limit {}", limit(libc::RLIMIT_CORE)))?;
    // What of the host can be seen?
    report("reads a file of everybody's", name(fs::read(&plan.file)))?;
    report("reads /etc/passwd", name(fs::read("/etc/passwd")))?;
    report("lists processes", name(fs::read_dir("/proc")))?;
    let host = ["boot", "proc", "run", "sys"].map(|name| format!("/{name}"));
    let seen: Vec<_> = host.iter().filter(|path| fs::metadata(path).is_ok()).map(String::as_str).collect();
    report("sees directories of the host's root", seen.join(" "))?;
    report("sees in /dev", list("/dev"))?;
    report("sees in /etc", list("/etc"))?;
    report("opens KVM", name(File::options().read(true).write(true).open("/dev/kvm")))?;
    // What of it can be reached?
    report("signals a process of its user", called(|| unsafe { libc::kill(plan.victim, 0) }.into()))?;
    report(
        "traces a process of its user",
        called(|| unsafe { libc::ptrace(libc::PTRACE_SEIZE, plan.victim, 0, 0) }),
    )?;
    report(
        "reads the memory of a process of its user",
        called(|| unsafe {
            libc::process_vm_readv(plan.victim, std::ptr::null(), 0, std::ptr::null(), 0, 0) as i64
        }),
    )?;
    report("connects to a socket in a directory", name(UnixStream::connect(&plan.socket)))?;
    let address = SocketAddr::from_abstract_name(&plan.abstract_socket)?;
    report("connects to an abstract socket", name(UnixStream::connect_addr(&address)))?;
    report("finds shared memory", called(|| unsafe { libc::shmget(plan.shared_memory, 0, 0) }.into()))?;
    let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_VSOCK];
    let opened =
        families.map(|family| called(|| unsafe { libc::socket(family, libc::SOCK_STREAM, 0) }.into()));
    report("opens a network", opened.join(" "))?;
    // What can be changed?
    report("writes to the root", name(File::create("/planted")))?;
    report("writes to a device's directory", name(File::create("/dev/planted")))?;
    report("writes to the kernel", name(File::options().append(true).open(&plan.kernel)))?;
    let own = std::env::args().next().unwrap_or_default();
    report("writes to its program", name(File::options().append(true).open(own)))?;
    report("becomes root", called(|| unsafe { libc::syscall(libc::SYS_setresuid, 0, 0, 0) }))?;
    report("makes a user namespace", called(|| unsafe { libc::unshare(libc::CLONE_NEWUSER) }.into()))?;
    report("makes a process in a user namespace", called(|| clone_into(libc::CLONE_NEWUSER)))?;
    report("makes a process in a network namespace", called(|| clone_into(libc::CLONE_NEWNET)))?;
    let clone3 = || unsafe { libc::syscall(libc::SYS_clone3, 0_usize, 0_usize) };
    report("makes a process with flags in memory", called(clone3))?;
    report("mounts", name(rustix::mount::mount_bind("/dev", "/usr").map_err(io::Error::from)))?;
    report(
        "loads a program into the kernel",
        called(|| unsafe { libc::syscall(libc::SYS_bpf, 0, 0_usize, 0) }),
    )?;
    // What can be used up?
    report("writes a file that is too large", grow(plan.too_large))?;
    report("raises its limits", raise())?;
    report("opens more than a thousand files", name(open_many()))?;
    report("end", String::new())
}

/// The name of an error, or that there was none.
fn name<T>(result: io::Result<T>) -> String {
    match result {
        Ok(_) => "done".to_owned(),
        Err(error) => match Errno::from_io_error(&error) {
            Some(errno) => nix::errno::Errno::from_raw(errno.raw_os_error())
                .to_string()
                .split(':')
                .next()
                .unwrap_or_default()
                .to_owned(),
            None => error.to_string(),
        },
    }
}

fn called(call: impl FnOnce() -> i64) -> String {
    let result = call();
    name(if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) })
}

/// The child of a call that is not refused ends at once.
fn clone_into(namespace: libc::c_int) -> i64 {
    // SAFETY: without a stack of its own the child has a copy of this one's, as of a fork.
    let child = unsafe { libc::syscall(libc::SYS_clone, namespace | libc::SIGCHLD, 0, 0, 0, 0) };
    if child == 0 {
        // SAFETY: takes a number, and runs nothing of this process's.
        unsafe { libc::_exit(0) };
    }
    child
}

fn list(directory: &str) -> String {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names.join(" ")
}

fn descriptors() -> String {
    let mut open = Vec::new();
    let mut directories = 0;
    for number in 0..4096 {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: fstat writes `stat`, of which zero is a value.
        if unsafe { libc::fstat(number, stat.as_mut_ptr()) } == 0 {
            // The console that this writes to was opened last.
            open.push(number);
            let kind = unsafe { stat.assume_init() }.st_mode & libc::S_IFMT;
            directories += u32::from(kind == libc::S_IFDIR);
        }
    }
    open.retain(|number| *number != 3);
    let open: Vec<_> = open.iter().map(i32::to_string).collect();
    format!("{}, directories: {directories}", open.join(" "))
}

fn blocked() -> String {
    let mut set = [0_u64; 1];
    // SAFETY: with no new set it writes the old one, as large as it is told.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, 0_usize, set.as_mut_ptr(), 8) };
    if set == [0] { "none".to_owned() } else { format!("{:x}", set[0]) }
}

fn capabilities() -> String {
    let own = rustix::thread::capabilities(None);
    let none = own.is_ok_and(|own| (own.effective | own.permitted | own.inheritable).is_empty());
    // SAFETY: takes numbers.
    let bounding =
        (0..64).filter(|bit| unsafe { libc::prctl(libc::PR_CAPBSET_READ, *bit, 0, 0, 0) } == 1).count();
    let own = if none { "none" } else { "some" };
    let bounding = if bounding == 0 { "none".to_owned() } else { bounding.to_string() };
    format!("{own}, bounding {bounding}")
}

fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes `limit`.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    limit.rlim_max
}

fn grow(size: u64) -> String {
    // SAFETY: sets a disposition. By default a file that is too large ends the process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let disk = File::options().write(true).open("disk");
    name(disk.and_then(|disk| disk.set_len(size)))
}

fn raise() -> String {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    called(|| unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }.into())
}

fn open_many() -> io::Result<Vec<OwnedFd>> {
    (0..1100).map(|_| File::open("disk").map(OwnedFd::from)).collect()
}
