//! OpenSSH's own server on a port of its own: the measure of our cases and of
//! our speed.

use crate::{
    Account, Endpoint, Remote, Scratch,
    process::{Run, Running},
    scratch::MARK,
    sweep::end_processes,
    wait::eventually,
};
use anyhow::Result;
use std::{
    fs,
    io::Read,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(30);

pub struct Sshd {
    endpoint: Endpoint,
    directory: PathBuf,
    process: Running,
}

impl Sshd {
    pub fn start(scratch: &Scratch) -> Result<Self> {
        let directory = scratch.directory("sshd")?;
        let endpoint =
            Endpoint { address: (Ipv4Addr::LOCALHOST, free_port()?).into(), scratch: scratch.path().into() };
        Run::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(directory.join("host_key"))
            .ok()?;
        let path = directory.display();
        // The key exchange is the one that the gateway has too. OpenSSH's own choice,
        // sntrup761, takes the client alone some 100 ms here: that is no server's doing.
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {path}/host_key\nPidFile none\nUsePAM no\n\
             StrictModes no\nAuthorizedKeysFile {path}/authorized_keys\nPermitRootLogin prohibit-password\n\
             PasswordAuthentication no\nPrintMotd no\nPrintLastLog no\nMaxSessions 1000\n\
             MaxStartups 1000\nAcceptEnv LANG LC_* COLORTERM\nSubsystem sftp internal-sftp\n\
             KexAlgorithms curve25519-sha256\nGatewayPorts clientspecified\nStreamLocalBindUnlink yes\nSetEnv {MARK}={path}\n",
            port = endpoint.address.port(),
        );
        fs::write(directory.join("config"), config)?;
        fs::write(directory.join("authorized_keys"), "")?;
        // Whoever logs in is root: an empty home for them, and the host's stays as it is.
        let script = "mount -t tmpfs none /root && mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -f \"$0\"";
        let process = Run::new("unshare")
            // What is unmounted outside must not live on in here.
            .args(["--mount", "--propagation", "slave", "sh", "-c", script])
            .arg(directory.join("config"))
            .env(MARK, scratch.path())
            .start()?;
        let mut sshd = Self { endpoint, directory, process };
        eventually("sshd to answer", LIMIT, || {
            if !sshd.process.is_running()? {
                anyhow::bail!("sshd ended: {}", sshd.process.complained()?);
            }
            Ok(banner(sshd.endpoint.address).is_some())
        })?;
        Ok(sshd)
    }

    /// Somebody with a key of their own. They all are root, in one home.
    pub fn remote(&self, scratch: &Scratch) -> Result<Remote> {
        let account = Account::new(self.endpoint.clone(), scratch.directory("u")?)?;
        let mut keys = fs::OpenOptions::new().append(true).open(self.directory.join("authorized_keys"))?;
        std::io::Write::write_all(&mut keys, format!("{}\n", account.public_key()?).as_bytes())?;
        Ok(account.at("root"))
    }

    pub fn log(&self) -> Result<String> {
        self.process.complained()
    }

    /// Ends it and every session of it, and what those left running.
    pub fn stop(&self) -> Result<()> {
        end_processes(&self.directory)
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }
}

/// A port that is free now; nobody else is likely to take it in the meantime.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// What an SSH server says first.
pub(crate) fn banner(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut said = [0; 8];
    stream.read_exact(&mut said).ok()?;
    String::from_utf8(said.to_vec()).ok().filter(|said| said.starts_with("SSH-2.0"))
}
