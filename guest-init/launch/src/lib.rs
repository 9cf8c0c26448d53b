//! Starts a process in a guest, as `std::process::Command` would, for less: until it
//! executes, the child borrows our memory, and it is born in its cgroup.
//!
//! To copy page tables and to move between cgroups is a seventh of all that a first
//! command runs, and where guests are emulated that is what its user waits for. The
//! host does not use this: a change of user in the child would clear its dumpable flag.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsString},
    io,
    mem::{MaybeUninit, size_of},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::PathBuf,
    ptr,
};

use rustix::{io::Errno, process::Pid, stdio};

/// The child is alone on it until it executes, and calls little.
const STACK: usize = 64 * 1024;
/// As many as the kernel has, and a set has bits.
const SIGNALS: libc::c_long = 64;
/// libc's constant of this name does not fit its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

pub type Prepare<'a> = &'a dyn Fn() -> rustix::io::Result<()>;

#[derive(Debug)]
pub struct Program {
    pub path: PathBuf,
    /// Its name is the first.
    pub arguments: Vec<OsString>,
    pub environment: BTreeMap<OsString, OsString>,
    /// Standard input, output and error.
    pub streams: [OwnedFd; 3],
}

impl Program {
    /// Starts it, in a cgroup if one is given, and returns when it executes. The
    /// program blocks and ignores no signal, whatever its parent does.
    /// `prepare` is what the child does before it executes, on our memory: it makes
    /// system calls and nothing else.
    pub fn start(&self, cgroup: Option<BorrowedFd<'_>>, prepare: Prepare<'_>) -> Result<Pid, NotStarted> {
        let path = CString::new(self.path.as_os_str().as_bytes())?;
        let arguments = self.arguments.iter().map(|word| CString::new(word.as_bytes()));
        let arguments: Vec<_> = arguments.collect::<Result<_, _>>()?;
        let environment = self
            .environment
            .iter()
            .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
        let environment: Vec<_> = environment.collect::<Result<_, _>>()?;
        let (words, variables) = (pointers(&arguments), pointers(&environment));
        let mut newborn = Newborn {
            path: path.as_ptr(),
            arguments: words.as_ptr(),
            environment: variables.as_ptr(),
            streams: self.streams.each_ref().map(|stream| stream.as_fd()),
            prepare,
            failed: None,
        };
        let pid = without_signals(|| newborn.clone(cgroup))?;
        match newborn.failed {
            None => Ok(pid),
            Some(errno) => Err(NotStarted { error: errno.into(), left: Some(pid) }),
        }
    }
}

/// Why there is no such process.
#[derive(Debug)]
pub struct NotStarted {
    pub error: io::Error,
    /// A child that could not execute and has ended: for the caller to collect.
    pub left: Option<Pid>,
}

impl From<io::Error> for NotStarted {
    fn from(error: io::Error) -> Self {
        Self { error, left: None }
    }
}

impl From<std::ffi::NulError> for NotStarted {
    fn from(error: std::ffi::NulError) -> Self {
        io::Error::from(error).into()
    }
}

impl From<NotStarted> for io::Error {
    fn from(failed: NotStarted) -> Self {
        failed.error
    }
}

fn pointers(words: &[CString]) -> Vec<*const libc::c_char> {
    words.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect()
}

/// What a child that has only just begun to be another process works on.
struct Newborn<'a> {
    path: *const libc::c_char,
    arguments: *const *const libc::c_char,
    environment: *const *const libc::c_char,
    streams: [BorrowedFd<'a>; 3],
    prepare: Prepare<'a>,
    failed: Option<Errno>,
}

impl Newborn<'_> {
    /// Returns when the child has executed or has given up.
    #[allow(unsafe_code)]
    fn clone(&mut self, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Pid> {
        let mut stack = vec![MaybeUninit::<u128>::uninit(); STACK / size_of::<u128>()];
        let into = if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 };
        let flags = (libc::CLONE_VM | libc::CLONE_VFORK).unsigned_abs();
        // SAFETY: all of its fields are numbers, for which zero is a value.
        let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
        arguments.flags = u64::from(flags) | into;
        arguments.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
        arguments.stack = stack.as_mut_ptr() as u64;
        arguments.stack_size = STACK as u64;
        arguments.cgroup = cgroup.map_or(0, |fd| u64::from(fd.as_raw_fd().unsigned_abs()));
        let result: i64;
        // SAFETY: clone3 reads `arguments`, of which it is told the size. This thread
        // sleeps until the child has executed or ended (CLONE_VFORK), so what the child
        // uses outlives its use: `self`, and a stack that nobody else has, 16 bytes
        // aligned as a call wants it. The child never gets past this block.
        unsafe {
            std::arch::asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "xor ebp, ebp",
                "mov rdi, r9",
                "call r8",
                "mov edi, 127",
                "mov eax, {exit}",
                "syscall",
                "2:",
                exit = const libc::SYS_exit,
                inlateout("rax") libc::SYS_clone3 => result,
                in("rdi") &raw const arguments,
                in("rsi") size_of::<libc::clone_args>(),
                in("r8") enter as extern "C" fn(*mut Newborn<'_>),
                in("r9") ptr::from_mut(self),
                lateout("rcx") _,
                lateout("r11") _,
            );
        }
        let failed = || io::Error::other("no process id");
        match i32::try_from(result).map_err(|_| failed())? {
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            pid => Pid::from_raw(pid).ok_or_else(failed),
        }
    }

    #[allow(unsafe_code)]
    fn execute(&self) -> Result<(), Errno> {
        let [stdin, stdout, stderr] = self.streams;
        stdio::dup2_stdin(stdin)?;
        stdio::dup2_stdout(stdout)?;
        stdio::dup2_stderr(stderr)?;
        plain_signals()?;
        (self.prepare)()?;
        // SAFETY: three terminated strings or lists of such, which outlive the call.
        unsafe { libc::execve(self.path, self.arguments, self.environment) };
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// Gives every signal its default disposition, then unblocks all. A blocked mask and
/// ignored signals survive `execve`: Ctrl-C would do nothing, and a hypervisor that
/// signals its own threads would wait for ever. The order matters: the parent's
/// handlers must not run in the child, which has the parent's memory.
#[allow(unsafe_code)]
fn plain_signals() -> rustix::io::Result<()> {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // The kernel's own sigaction, all zeroes: SIG_DFL, no flags, an empty mask. libc's
    // wrapper refuses the two signals that it keeps for itself, which may be ignored too.
    let default = [0_u64; 4];
    // SAFETY: rt_sigaction reads `default`, which is as large as the kernel's structure;
    // sigemptyset initialises the set before it is read. The dispositions are the child's
    // own copy (no CLONE_SIGHAND). A signal that cannot be changed is refused, which
    // changes nothing.
    let error = unsafe {
        for signal in 1..=SIGNALS {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null_mut::<u64>(),
                SIGNALS / 8,
            );
        }
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(error)) }
}

/// Where the child begins. It comes back only if it could not execute.
#[allow(unsafe_code)]
extern "C" fn enter(newborn: *mut Newborn<'_>) {
    // SAFETY: the parent lent it, and sleeps.
    let newborn = unsafe { &mut *newborn };
    newborn.failed = newborn.execute().err();
}

/// A signal's handler must not run in a child that has our memory.
#[allow(unsafe_code)]
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the one, pthread_sigmask the other.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let done = work();
    // SAFETY: it was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::File,
        io::Read as _,
        sync::atomic::{AtomicBool, Ordering},
    };

    fn program(path: &str, arguments: &[&str]) -> (Program, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let null = || OwnedFd::from(File::options().read(true).write(true).open("/dev/null").unwrap());
        let program = Program {
            path: path.into(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: [("A".into(), "1".into())].into(),
            streams: [null(), writer.into(), null()],
        };
        (program, reader)
    }

    fn wait(pid: Pid) -> Option<i32> {
        let status = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
        status?.1.exit_status()
    }

    #[test]
    fn it_has_what_it_was_given_and_nothing_else() {
        let (program, mut output) =
            program("/bin/sh", &["name", "-c", "echo $0 $A; env | wc -l; pwd; exit 7"]);
        let pid = program.start(None, &|| rustix::process::chdir(c"/")).unwrap();
        drop(program);
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        // What a shell adds by itself is PWD and the like.
        assert_eq!(lines.first(), Some(&"name 1"));
        assert!(lines.get(1).unwrap().trim().parse::<u32>().unwrap() <= 4, "{text}");
        assert_eq!(lines.get(2), Some(&"/"));
        assert_eq!(wait(pid), Some(7));
        assert_ne!(std::env::current_dir().unwrap().as_os_str(), "/");
    }

    #[test]
    fn what_cannot_execute_says_why() {
        let (absent, _output) = program("/nonexistent", &["nonexistent"]);
        let failed = absent.start(None, &|| Ok(())).unwrap_err();
        assert_eq!(failed.error.kind(), io::ErrorKind::NotFound);
        assert_eq!(wait(failed.left.unwrap()), Some(127));
        let (refused, _output) = program("/bin/true", &["true"]);
        let failed = refused.start(None, &|| Err(Errno::PERM)).unwrap_err();
        assert_eq!(failed.error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(wait(failed.left.unwrap()), Some(127));
    }

    #[test]
    fn the_child_blocks_and_ignores_no_signal() {
        let mut parents = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set; the mask is this thread's own.
        #[allow(unsafe_code)]
        unsafe {
            libc::sigemptyset(parents.as_mut_ptr());
            libc::sigaddset(parents.as_mut_ptr(), libc::SIGUSR2);
            libc::pthread_sigmask(libc::SIG_BLOCK, parents.as_ptr(), ptr::null_mut());
            libc::signal(libc::SIGUSR1, libc::SIG_IGN);
        }
        let own = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find(|line| line.starts_with("SigBlk:")).unwrap().to_owned()
        };
        let before = own();
        let (program, mut output) =
            program("/bin/cat", &["cat", "/proc/self/status", "/proc/thread-self/status"]);
        let pid = program.start(None, &|| Ok(())).unwrap();
        drop(program);
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(wait(pid), Some(0));
        for name in ["SigBlk:", "SigIgn:"] {
            let masks: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(name)).collect();
            assert_eq!(masks.len(), 2, "{text}");
            assert!(masks.iter().all(|mask| mask.trim() == "0000000000000000"), "{name} {masks:?}");
        }
        // The thread that started it has its own mask back.
        assert_eq!(own(), before);
        assert!(before.ends_with("800"), "{before}");
    }

    #[test]
    fn the_child_is_done_with_our_memory_when_it_has_started() {
        let prepared = AtomicBool::new(false);
        let (program, _output) = program("/bin/true", &["true"]);
        let pid = program.start(None, &|| {
            prepared.store(true, Ordering::Relaxed);
            Ok(())
        });
        assert!(prepared.load(Ordering::Relaxed));
        assert_eq!(wait(pid.unwrap()), Some(0));
    }
}
