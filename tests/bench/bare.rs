//! The gateway on its own: between a hostd that knows one machine and a
//! guest-init that runs on the host. What it adds is the gateway's share.

use anyhow::{Context as _, Result, ensure};
use berth_api::{Call, Connection, Message, Reply, Request, Resolved};
use berth_tests::{Account, Remote, Run, Running, Scratch, Service, Settings, repository, until};
use berth_types::{Code, MachineName, Refusal, UserId};
use std::{
    env, fs,
    net::{SocketAddr, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{net::UnixListener, runtime::Runtime};

pub struct Bare {
    gateway: Service,
    _guest: Running,
    _hostd: Runtime,
}

impl Bare {
    pub fn start(scratch: &Scratch) -> Result<Self> {
        // As sshd's logins have it here: an empty home, whose start-up files cost nothing. The program
        // itself may lie under the real one, so it runs from a copy.
        let program = scratch.directory("guest")?.join("guest-init");
        fs::copy(hosted_guest()?, &program)?;
        let script = "mount -t tmpfs none /root && exec \"$0\" serve --listen 127.0.0.1:0";
        let guest = Run::new("unshare")
            .args(["--mount", "--propagation", "slave", "sh", "-c", script])
            .arg(&program)
            .limit(Duration::from_secs(7200))
            .start()?;
        let address = until("guest-init to listen", Duration::from_secs(30), || {
            let said = guest.said()?;
            Ok(said.ends_with('\n').then(|| said.trim().parse::<SocketAddr>()).transpose()?)
        })?;
        let gateway = Service::prepare(scratch, &Settings::default().set("service.log", "info"))?;
        let socket = gateway.directory().join("run/hostd.sock");
        let hostd = hostd(&socket, address)?;
        gateway.start_gateway()?;
        Ok(Self { gateway, _guest: guest, _hostd: hostd })
    }

    pub fn remote(&self, scratch: &Scratch) -> Result<Remote> {
        let account: Account = self.gateway.account(scratch)?;
        Ok(account.at("main"))
    }

    pub fn stop(&self) -> Result<()> {
        self.gateway.end_gateway()
    }
}

/// guest-init as it can run on a host; the image's own cannot.
fn hosted_guest() -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let own = env::current_exe()?;
    let profile = own.parent().context("no directory of programs")?;
    let target = profile.parent().context("no target directory")?;
    // Its own directory: with this feature the program has the same name.
    let target = target.join("hosted");
    Run::new(cargo)
        .args(["build", "--quiet", "--release", "-p", "berth-guest-init", "--features", "hosted"])
        .arg("--target-dir")
        .arg(&target)
        .directory(repository())
        .limit(Duration::from_secs(900))
        .ok()?;
    let program = target.join("release/berth-guest-init");
    ensure!(program.exists(), "{} is missing", program.display());
    Ok(program)
}

fn hostd(socket: &Path, guest: SocketAddr) -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    fs::create_dir_all(socket.parent().context("no directory")?)?;
    let listener = {
        let _inside = runtime.enter();
        UnixListener::bind(socket)?
    };
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666))?;
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(Connection::new(stream), guest));
        }
    });
    Ok(runtime)
}

async fn serve(mut connection: Connection, guest: SocketAddr) {
    let user = UserId::random();
    while let Ok((call, _)) = connection.receive::<Call>().await {
        if let Request::Access { seen: Some(_) } = call.request {
            return std::future::pending().await;
        }
        let answer = answer(call.request, &user, guest);
        let (result, descriptor) = match answer {
            Ok((reply, descriptor)) => (Ok(reply), descriptor),
            Err(refusal) => (Err(refusal), None),
        };
        let descriptor = descriptor.as_ref().map(AsFd::as_fd);
        if connection.send(&Message::Done(result), descriptor).await.is_err() {
            return;
        }
    }
}

fn answer(request: Request, user: &UserId, guest: SocketAddr) -> Result<(Reply, Option<OwnedFd>), Refusal> {
    let failed = |what: String| Refusal::new(Code::Failed, what, "");
    let machine = || "main".parse::<MachineName>().map_err(|error| failed(error.to_string()));
    match request {
        Request::Access { .. } => Ok((Reply::Access(1), None)),
        Request::Knows { .. } => Ok((Reply::Knows(true), None)),
        Request::Login { .. } => {
            Ok((Reply::LoggedIn { user: user.clone(), registered: false, notices: Vec::new() }, None))
        }
        // Nothing is ever taken away here, so this is never asked again.
        Request::Standing { sessions } => Ok((Reply::Standing(vec![None; sessions.len()]), None)),
        Request::Resolve { .. } => Ok((Reply::Resolved(Resolved::Machine(machine()?)), None)),
        Request::Attach { name } => {
            let stream = TcpStream::connect(guest).map_err(|error| failed(error.to_string()))?;
            Ok((Reply::Attached { name, made: false }, Some(stream.into())))
        }
        other => Err(failed(format!("no answer to {other:?}"))),
    }
}
