//! A key and the ssh configuration that goes with it.

use crate::{Remote, process::Run, scratch::MARK};
use anyhow::Result;
use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// What the configuration calls the server: `ssh HOST`, `ssh main@HOST`.
pub const HOST: &str = "berth";

#[derive(Clone, Debug)]
pub struct Endpoint {
    pub address: SocketAddr,
    /// The run that everything started for it belongs to.
    pub scratch: PathBuf,
}

/// One person: a key of their own, and nothing of the host's own ssh setup.
/// A case that makes a fresh one shares nothing with any other case.
#[derive(Clone, Debug)]
pub struct Account {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    directory: PathBuf,
}

impl Account {
    pub fn new(endpoint: Endpoint, directory: PathBuf) -> Result<Self> {
        Self::with_key(endpoint, directory, "ed25519")
    }

    pub fn with_key(endpoint: Endpoint, directory: PathBuf, kind: &str) -> Result<Self> {
        let key = directory.join("key");
        Run::new("ssh-keygen").args(["-q", "-t", kind, "-N", "", "-C", "test", "-f"]).arg(&key).ok()?;
        let account = Self { inner: Arc::new(Inner { endpoint, directory }) };
        fs::write(account.config(), account.config_text())?;
        Ok(account)
    }

    fn config_text(&self) -> String {
        let Inner { endpoint, directory } = &*self.inner;
        let (address, port, directory) =
            (endpoint.address.ip(), endpoint.address.port(), directory.display());
        format!(
            "Host {HOST}\n  HostName {address}\n  Port {port}\n\
             Host *\n  IdentityFile {directory}/key\n  IdentitiesOnly yes\n  IdentityAgent none\n  \
             BatchMode yes\n  ConnectTimeout 60\n  StrictHostKeyChecking accept-new\n  \
             UserKnownHostsFile {directory}/known_hosts\n  GlobalKnownHostsFile /dev/null\n  \
             LogLevel ERROR\n"
        )
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    pub fn directory(&self) -> &Path {
        &self.inner.directory
    }

    pub fn config(&self) -> PathBuf {
        self.inner.directory.join("config")
    }

    pub fn key(&self) -> PathBuf {
        self.inner.directory.join("key")
    }

    pub fn public_key(&self) -> Result<String> {
        Ok(fs::read_to_string(self.inner.directory.join("key.pub"))?.trim_end().to_owned())
    }

    /// A program that reads this account's ssh configuration by `-F`.
    pub fn client(&self, program: &str) -> Run {
        self.program(program).arg("-F").arg(self.config())
    }

    /// Any other program of this account.
    pub fn program(&self, program: &str) -> Run {
        Run::new(program)
            .env(MARK, &self.inner.endpoint.scratch)
            .env("HOME", &self.inner.directory)
            .without_env("SSH_AUTH_SOCK")
    }

    /// `ssh HOST WORDS`: a verb, or whatever it is tested to be taken for.
    pub fn verb(&self, words: &str) -> Result<crate::Output> {
        self.client("ssh").arg(HOST).arg("--").arg(words).finish()
    }

    /// A line as people paste it: `ssh`, `scp` and `sftp` in it are those of
    /// this account, and `~/.ssh` has its key under the usual name.
    pub fn paste(&self, line: &str, directory: &Path) -> Result<crate::Output> {
        let programs = self.inner.directory.join("bin");
        if !programs.exists() {
            fs::create_dir(&programs)?;
            let config = self.config();
            for name in ["ssh", "scp", "sftp"] {
                let path = programs.join(name);
                fs::write(
                    &path,
                    format!("#!/bin/sh\nexec /usr/bin/{name} -F {} \"$@\"\n", config.display()),
                )?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            }
            fs::create_dir_all(self.inner.directory.join(".ssh"))?;
            fs::copy(self.inner.directory.join("key.pub"), self.inner.directory.join(".ssh/id_ed25519.pub"))?;
        }
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        self.program("bash").env("PATH", path).directory(directory).arg("-c").arg(line).finish()
    }

    /// Where `ssh LOGIN@HOST` leads.
    pub fn at(&self, login: &str) -> Remote {
        Remote::new(self.clone(), login)
    }
}
