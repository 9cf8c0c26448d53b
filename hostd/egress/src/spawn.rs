//! Starting the bridge with nothing that it does not need.

use nix::sys::resource::{Resource, setrlimit};
use std::{
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Command, Stdio},
};
use tokio::{net::UnixStream, process::Child};

/// How the bridge is started. Its control socket is its standard input, and it
/// leaves root by itself before it reads anything: whom it becomes need not be
/// able to reach the program's file.
#[derive(Clone, Debug)]
pub struct Launch {
    pub program: PathBuf,
    /// Who it runs as: by number, since nothing on the host has to know it.
    pub uid: u32,
    pub gid: u32,
    /// How many descriptors it may have: two for each connection, and a few.
    pub descriptors: u64,
}

impl Launch {
    pub(crate) fn start(&self) -> io::Result<(Child, UnixStream)> {
        if self.uid == 0 || self.gid == 0 {
            return Err(io::Error::other("the bridge must not run as root"));
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        let mut command = Command::new(&self.program);
        command.arg(self.uid.to_string()).arg(self.gid.to_string());
        command.env_clear().current_dir("/").stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        for variable in ["RUST_LOG", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(variable) {
                command.env(variable, value);
            }
        }
        self.confine(&mut command);
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        ours.set_nonblocking(true)?;
        Ok((child, UnixStream::from_std(ours)?))
    }

    #[allow(unsafe_code)]
    fn confine(&self, command: &mut Command) {
        let descriptors = self.descriptors;
        let confine = move || {
            setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
            setrlimit(Resource::RLIMIT_NOFILE, descriptors, descriptors)?;
            nix::sys::prctl::set_no_new_privs()?;
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made, nothing is
        // allocated and no lock is taken.
        unsafe { command.pre_exec(confine) };
    }
}
