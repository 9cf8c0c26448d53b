//! Somewhere to log in to, and the usual clients pointed at it.

use crate::{
    Account,
    account::HOST,
    process::{Output, Run},
};
use anyhow::Result;
use std::path::Path;

#[derive(Clone, Debug)]
pub struct Remote {
    account: Account,
    login: String,
}

impl Remote {
    pub(crate) fn new(account: Account, login: &str) -> Self {
        Self { account, login: login.to_owned() }
    }

    pub fn account(&self) -> &Account {
        &self.account
    }

    pub fn login(&self) -> &str {
        &self.login
    }

    /// `LOGIN@HOST`, as every client takes it.
    pub fn target(&self) -> String {
        format!("{}@{HOST}", self.login)
    }

    /// `LOGIN@HOST:PATH`, as scp, rsync and git take it.
    pub fn path(&self, path: &str) -> String {
        format!("{}:{path}", self.target())
    }

    /// `ssh OPTIONS LOGIN@HOST`; a command may follow.
    pub fn ssh(&self, options: &[&str]) -> Run {
        self.account.client("ssh").args(options).arg(self.target())
    }

    /// Runs a command line there, whatever its status.
    pub fn run(&self, line: &str) -> Result<Output> {
        self.ssh(&[]).arg(line).finish()
    }

    /// Runs a command line there that must succeed.
    pub fn exec(&self, line: &str) -> Result<Output> {
        self.run(line)?.ok()
    }

    /// The same; what it printed, without the last line's end.
    pub fn line(&self, line: &str) -> Result<String> {
        Ok(self.exec(line)?.line())
    }

    pub fn write(&self, path: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.ssh(&[]).arg(format!("cat > {path}")).input(bytes)?.ok()?;
        Ok(())
    }

    /// Unpacks there, in a new directory, what a command line packs here with tar: a
    /// client that this host has and the image, which is of the same Debian, has not.
    pub fn carry(&self, packing: &str, directory: &str) -> Result<()> {
        let packed = Run::new("sh").arg("-c").arg(packing).ok()?;
        let unpack = format!("mkdir {directory} && tar -x -C {directory}");
        self.ssh(&[]).arg(unpack).input(&packed.stdout)?.ok()?;
        Ok(())
    }

    /// A module of this host's Python, likewise, for PYTHONPATH.
    pub fn carry_module(&self, module: &str, directory: &str) -> Result<()> {
        let packing = format!("tar -c --exclude __pycache__ -C /usr/lib/python3/dist-packages {module}");
        self.carry(&packing, directory)
    }

    pub fn scp(&self, options: &[&str]) -> Run {
        self.account.client("scp").args(options)
    }

    /// Runs the lines of a batch, of which the first that fails ends it.
    pub fn sftp(&self, batch: &str, directory: &Path) -> Result<Output> {
        self.account
            .client("sftp")
            .args(["-b", "-"])
            .arg(self.target())
            .directory(directory)
            .input(batch)?
            .finish()
    }

    /// How rsync and git are told which ssh to use.
    pub fn ssh_command(&self) -> String {
        format!("ssh -F {}", self.account.config().display())
    }

    pub fn rsync(&self, options: &[&str]) -> Run {
        self.account.program("rsync").arg("-e").arg(self.ssh_command()).args(options)
    }

    pub fn git(&self, directory: &Path) -> Run {
        self.account
            .program("git")
            .directory(directory)
            .env("GIT_SSH_COMMAND", self.ssh_command())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .args(["-c", "user.name=Test", "-c", "user.email=test@localhost"])
            .args(["-c", "init.defaultBranch=main"])
    }
}
