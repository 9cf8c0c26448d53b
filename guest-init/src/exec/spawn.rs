//! From a request to a running process.

use std::{
    ffi::{CString, OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    process::{Command, Stdio},
};

use berth_guest_protocol as protocol;
use rustix::{
    fs::{Mode, OFlags, fcntl_setfl},
    io::Errno,
    process::{Resource, Rlimit},
    stdio,
};

use super::{
    environment,
    terminal::{Line, Terminal},
};
use crate::{
    account::Account,
    children::{Child, Role},
    error::{Context, Error, Result},
    guest::Guest,
};

/// What a distribution's init gives its sessions: the soft limit that programs
/// expect, and room above it for those that ask.
const FILES: Rlimit = Rlimit { current: Some(1024), maximum: Some(524_288) };

#[derive(Debug)]
pub struct Running {
    pub child: Child,
    pub ends: Ends,
    /// To be shown before anything the process says.
    pub greeting: Vec<u8>,
}

/// Our ends of a process's standard streams.
#[derive(Debug)]
pub enum Ends {
    Terminal(Terminal),
    Pipes { stdin: OwnedFd, stdout: OwnedFd, stderr: OwnedFd },
}

pub fn start(guest: &Guest, request: &protocol::Exec) -> Result<Running> {
    let account = guest.account();
    let mut command = command(guest, &account, request)?;
    let (ends, role) = match &request.pty {
        Some(pty) => {
            let (terminal, line) = Terminal::open(pty)?;
            if guest.is_machine() {
                line.give_to(&account)?;
            }
            attach_terminal(&mut command, pty, line)?;
            let job = !matches!(request.command, protocol::Command::Shell);
            (Ends::Terminal(terminal), if job { Role::Job } else { Role::Shell })
        }
        None => (attach_pipes(&mut command)?, Role::Command),
    };
    let greeting = if guest.is_machine() && role == Role::Shell { greeting(&account) } else { Vec::new() };
    let prepare = Prepare::new(guest, account, request.pty.is_some())?;
    let child = spawn(guest, &mut command, prepare, role)?;
    Ok(Running { child, ends, greeting })
}

/// The message of the day, unless the user has hushed it.
fn greeting(account: &Account) -> Vec<u8> {
    const LIMIT: u64 = 16 * 1024;
    if account.home.join(".hushlogin").exists() {
        return Vec::new();
    }
    let mut text = Vec::new();
    if let Ok(file) = File::open("/etc/motd") {
        // Half a greeting is still one.
        let _ = file.take(LIMIT).read_to_end(&mut text);
    }
    // It does not pass through the terminal, which would do this.
    text.split_inclusive(|&b| b == b'\n')
        .flat_map(|line| match line.strip_suffix(b"\n") {
            Some(line) => [line, b"\r\n"],
            None => [line, b""],
        })
        .flatten()
        .copied()
        .collect()
}

/// Runs a program of the machine as the user, for guest-init's own purposes.
pub fn errand(guest: &Guest, program: &str, arguments: &[&str]) -> Result<(Child, OwnedFd)> {
    let account = guest.account();
    let (reader, writer) = io::pipe().during("make", "a pipe")?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(environment::login(&account, guest.equipment.variables(), &[]));
    command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    let prepare = Prepare::new(guest, account, false)?;
    Ok((spawn(guest, &mut command, prepare, Role::Errand)?, reader.into()))
}

fn command(guest: &Guest, account: &Account, request: &protocol::Exec) -> Result<Command> {
    let mut command = match &request.command {
        protocol::Command::Shell => {
            let mut command = Command::new(&account.shell);
            let mut name = OsString::from("-");
            name.push(account.shell.file_name().unwrap_or(OsStr::new("sh")));
            command.arg0(name);
            command
        }
        protocol::Command::Line(line) => {
            let mut command = Command::new(&account.shell);
            if let Some(name) = account.shell.file_name() {
                command.arg0(name);
            }
            if line.contains(&0) {
                return Err(Error::new("run", "a line with a zero byte", io::ErrorKind::InvalidInput.into()));
            }
            command.arg("-c").arg(OsStr::from_bytes(line));
            command
        }
        protocol::Command::Sftp => {
            let mut command = Command::new(&guest.program);
            command.arg("sftp");
            command
        }
    };
    command.env_clear().envs(environment::login(account, guest.equipment.variables(), &request.env));
    Ok(command)
}

fn attach_terminal(command: &mut Command, pty: &protocol::Pty, line: Line) -> Result<()> {
    let term = pty.term.replace('\0', "");
    if !term.is_empty() {
        command.env("TERM", term);
    }
    command.env("SSH_TTY", &line.path);
    let copy = || line.slave.try_clone().during("share", line.path.display());
    command.stdin(copy()?).stdout(copy()?).stderr(line.slave);
    Ok(())
}

fn attach_pipes(command: &mut Command) -> Result<Ends> {
    let pipe = || io::pipe().during("make", "a pipe");
    let ((stdin_theirs, stdin), (stdout, stdout_theirs), (stderr, stderr_theirs)) =
        (pipe()?, pipe()?, pipe()?);
    command.stdin(stdin_theirs).stdout(stdout_theirs).stderr(stderr_theirs);
    let (stdin, stdout, stderr) = (stdin.into(), stdout.into(), stderr.into());
    for (end, flags) in [(&stdin, OFlags::WRONLY), (&stdout, OFlags::RDONLY), (&stderr, OFlags::RDONLY)] {
        // Each end is a description of its own: the process's stays blocking.
        fcntl_setfl::<&OwnedFd>(end, flags | OFlags::NONBLOCK).during("prepare", "a pipe")?;
    }
    Ok(Ends::Pipes { stdin, stdout, stderr })
}

#[allow(unsafe_code)]
fn spawn(guest: &Guest, command: &mut Command, prepare: Prepare, role: Role) -> Result<Child> {
    let program = command.get_program().display().to_string();
    // SAFETY: `between_fork_and_exec` makes system calls only: it takes no
    // lock and allocates nothing that another thread could hold at the fork.
    unsafe { command.pre_exec(move || prepare.between_fork_and_exec().map_err(io::Error::from)) };
    // Nothing starts in a frozen machine: it would stop halfway, before exec.
    let _thawed = guest.freezer.admit();
    guest.children.spawn(command, role).during("run", program)
}

/// What the child does to itself, decided before the fork.
struct Prepare {
    account: Account,
    home: CString,
    change_user: bool,
    terminal: bool,
    cgroup: Option<OwnedFd>,
}

impl Prepare {
    fn new(guest: &Guest, account: Account, terminal: bool) -> Result<Self> {
        let home = account.home_c()?;
        Ok(Self {
            home,
            account,
            change_user: guest.is_machine(),
            terminal,
            cgroup: guest.freezer.entrance()?,
        })
    }

    fn between_fork_and_exec(&self) -> rustix::io::Result<()> {
        rustix::process::setsid()?;
        plain_signals()?;
        if self.terminal {
            rustix::process::ioctl_tiocsctty(stdio::stdin())?;
        }
        rustix::process::umask(Mode::from_raw_mode(0o022));
        if let Some(cgroup) = &self.cgroup {
            rustix::io::write(cgroup, b"0")?;
        }
        if self.change_user {
            rustix::process::setrlimit(Resource::Nofile, FILES)?;
            self.account.assume()?;
        }
        // A missing home is no reason to refuse a login; sshd goes to / too.
        match rustix::process::chdir(self.home.as_c_str()) {
            Err(Errno::NOENT | Errno::ACCESS | Errno::NOTDIR) => rustix::process::chdir(c"/"),
            other => other,
        }
    }
}

/// PID 1 waits for some signals by blocking them, and whoever started it may
/// ignore others; both would be inherited, and Ctrl-C would do nothing.
#[allow(unsafe_code)]
fn plain_signals() -> rustix::io::Result<()> {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before it is read; all of these
    // calls are allowed between fork and exec. Signals that cannot be changed
    // are refused, which changes nothing.
    let error = unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(error)) }
}
