//! From a request to a running process.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr, OsString},
    fs::File,
    io::{self, PipeReader, Read as _},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
};

use berth_guest_protocol as protocol;
use berth_launch::Program;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags, fcntl_setfl},
    io::Errno,
    process::{Resource, Rlimit},
    stdio,
    time::Timespec,
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
    incarnation::Ports,
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
    let (path, arguments) = command(guest, &account, request)?;
    let variables = environment::login(&account, guest.equipment.variables(), &request.env);
    let mut environment: BTreeMap<_, _> = variables.into_iter().collect();
    let (ends, streams, role) = match &request.pty {
        Some(pty) => {
            let (terminal, line) = Terminal::open(pty)?;
            if guest.is_machine() {
                line.give_to(&account)?;
            }
            let streams = attach_terminal(&mut environment, pty, line)?;
            let job = !matches!(request.command, protocol::Command::Shell);
            (Ends::Terminal(terminal), streams, if job { Role::Job } else { Role::Shell })
        }
        None => {
            let (ends, streams) = pipes()?;
            (ends, streams, Role::Command)
        }
    };
    let greeting = if guest.is_machine() && role == Role::Shell { greeting(&account) } else { Vec::new() };
    let prepare = Prepare::new(guest, account, request.pty.is_some())?;
    let child = spawn(guest, Program { path, arguments, environment, streams }, &prepare, role)?;
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

fn null() -> Result<File> {
    File::options().read(true).write(true).open("/dev/null").during("open", "/dev/null")
}

/// Runs a program of the machine as the user, for guest-init's own purposes.
pub fn errand(guest: &Guest, program: &str, arguments: &[&str]) -> Result<(Child, OwnedFd)> {
    let account = guest.account();
    let (reader, writer) = io::pipe().during("make", "a pipe")?;
    let program = Program {
        path: program.into(),
        arguments: [program].iter().chain(arguments).map(OsString::from).collect(),
        environment: environment::login(&account, guest.equipment.variables(), &[]).into_iter().collect(),
        streams: [null()?.into(), writer.into(), null()?.into()],
    };
    let prepare = Prepare::new(guest, account, false)?;
    Ok((spawn(guest, program, &prepare, Role::Errand)?, reader.into()))
}

/// How often a process that waits for its machine to come back looks.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// A process that waits for a word and then, if the machine is somebody else's
/// before there is another, becomes a shell that runs a line, as a user's command
/// would. It is none of the user's processes, and reads none of the user's files.
/// Returns when it has become one, or has ended because it did not.
pub fn rehearse(guest: &Guest, heard: &PipeReader, line: &str) -> Result<()> {
    let account = guest.account();
    let null = OwnedFd::from(null()?);
    let copy = || null.try_clone().during("share", "/dev/null");
    let variables = environment::login(&account, guest.equipment.variables(), &[]);
    let program = Program {
        path: "/bin/bash".into(),
        arguments: ["bash", "--norc", "-c", line].map(OsString::from).into(),
        environment: variables.into_iter().filter(|(name, _)| name != "BASH_ENV").collect(),
        streams: [copy()?, copy()?, null],
    };
    let prepare = Prepare::new(guest, account, false)?;
    let before_exec = || {
        // What it holds while it waits would not be closed.
        close_all_but(heard)?;
        let ports = Ports::open().ok_or(Errno::CANCELED)?;
        let before = ports.identity();
        if rustix::io::read(heard, &mut [0; 1])? == 0 {
            return Err(Errno::CANCELED);
        }
        prepare.before_exec()?;
        while poll(&mut [PollFd::new(heard, PollFlags::IN)], Some(&LOOK))? == 0 {
            if ports.identity() != before {
                return Ok(());
            }
        }
        Err(Errno::CANCELED)
    };
    let started = program.start(None, &before_exec);
    guest.children.bury_others();
    started.map(drop).map_err(io::Error::from).during("run", "a shell")
}

/// Beside standard input, output and error.
#[allow(unsafe_code)]
fn close_all_but(kept: &impl AsRawFd) -> rustix::io::Result<()> {
    let kept = kept.as_raw_fd().unsigned_abs();
    let close = |first, last| {
        // SAFETY: called where nobody uses what is closed any more: in a child that
        // is about to execute.
        let result = unsafe { libc::close_range(first, last, 0) };
        if first > last || result == 0 { Ok(()) } else { Err(Errno::INVAL) }
    };
    close(3, kept - 1)?;
    close(kept + 1, u32::MAX)
}

fn command(guest: &Guest, account: &Account, request: &protocol::Exec) -> Result<(PathBuf, Vec<OsString>)> {
    let shell = account.shell.file_name().unwrap_or(OsStr::new("sh"));
    Ok(match &request.command {
        protocol::Command::Shell => {
            let mut name = OsString::from("-");
            name.push(shell);
            (account.shell.clone(), vec![name])
        }
        protocol::Command::Line(line) => {
            if line.contains(&0) {
                return Err(Error::new("run", "a line with a zero byte", io::ErrorKind::InvalidInput.into()));
            }
            (account.shell.clone(), vec![shell.into(), "-c".into(), OsStr::from_bytes(line).into()])
        }
        protocol::Command::Sftp => (guest.program.clone(), vec![guest.program.clone().into(), "sftp".into()]),
    })
}

fn attach_terminal(
    environment: &mut BTreeMap<OsString, OsString>,
    pty: &protocol::Pty,
    line: Line,
) -> Result<[OwnedFd; 3]> {
    let term = pty.term.replace('\0', "");
    if !term.is_empty() {
        environment.insert("TERM".into(), term.into());
    }
    let copy = || line.slave.try_clone().during("share", line.path.display());
    let streams = [copy()?, copy()?, copy()?];
    environment.insert("SSH_TTY".into(), line.path.into());
    Ok(streams)
}

/// Our ends, and the process's.
fn pipes() -> Result<(Ends, [OwnedFd; 3])> {
    let pipe = || io::pipe().during("make", "a pipe");
    let ((stdin_theirs, stdin), (stdout, stdout_theirs), (stderr, stderr_theirs)) =
        (pipe()?, pipe()?, pipe()?);
    let (stdin, stdout, stderr) = (stdin.into(), stdout.into(), stderr.into());
    for (end, flags) in [(&stdin, OFlags::WRONLY), (&stdout, OFlags::RDONLY), (&stderr, OFlags::RDONLY)] {
        // Each end is a description of its own: the process's stays blocking.
        fcntl_setfl::<&OwnedFd>(end, flags | OFlags::NONBLOCK).during("prepare", "a pipe")?;
    }
    let theirs = [stdin_theirs.into(), stdout_theirs.into(), stderr_theirs.into()];
    Ok((Ends::Pipes { stdin, stdout, stderr }, theirs))
}

/// Starts a process among the user's; what was its is closed here afterwards.
fn spawn(guest: &Guest, program: Program, prepare: &Prepare, role: Role) -> Result<Child> {
    // Nothing starts in a frozen machine: it would stop halfway, before exec.
    let _thawed = guest.freezer.admit();
    let cgroup = guest.freezer.entrance()?;
    // One that cannot execute is left to the reaper.
    let start = || Ok(program.start(cgroup, &|| prepare.before_exec())?);
    guest.children.spawn(start, role).during("run", program.path.display())
}

/// What the child does to itself, decided before it is there.
struct Prepare {
    account: Account,
    home: CString,
    change_user: bool,
    terminal: bool,
}

impl Prepare {
    fn new(guest: &Guest, account: Account, terminal: bool) -> Result<Self> {
        let home = account.home_c()?;
        Ok(Self { home, account, change_user: guest.is_machine(), terminal })
    }

    /// System calls only: the child has our memory, and no other thread stops for it.
    fn before_exec(&self) -> rustix::io::Result<()> {
        rustix::process::setsid()?;
        if self.terminal {
            rustix::process::ioctl_tiocsctty(stdio::stdin())?;
        }
        rustix::process::umask(Mode::from_raw_mode(0o022));
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
