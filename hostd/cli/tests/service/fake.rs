//! The daemons of the cases: this test program itself, started under their names.

use berth_api::{Call, Caller, Client, Connection, Message, READY_LOGIN, Reply, Request, Status};
use berth_types::{ByteSize, Code, Refusal};
use getrandom::SysRng;
use russh::{
    Channel, ChannelId,
    keys::{Algorithm, PrivateKey, ssh_key::rand_core::UnwrapErr},
    server::{self, Auth, ChannelOpenHandle, Msg, Session, VerifiedPublicKey},
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::net::UnixListener;

/// Where the case keeps its files; set only in what it starts.
pub const DIRECTORY: &str = "BERTH_FAKE_DIRECTORY";
pub const PORT: &str = "BERTH_FAKE_PORT";

/// Files that change how hostd behaves, or that it leaves.
pub const BROKEN: &str = "broken";
pub const SLOW: &str = "slow";
pub const ASKED: &str = "asked";
/// One that keeps the gateway from hostd.
pub const CUT_OFF: &str = "cut-off";

pub const REASON: &str = "the pool cannot be mounted";

fn directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

#[test]
#[ignore = "the cases start it as berth-hostd"]
fn hostd() {
    let Some(directory) = directory() else { return };
    if directory.join(BROKEN).exists() {
        eprintln!("{REASON}");
        std::process::exit(3);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve(&directory));
}

async fn serve(directory: &Path) {
    let socket = directory.join("run/hostd.sock");
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    // It is the gateway's, as the true one.
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    nix::unistd::chown(&socket, Some(nobody.uid), None).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(answer(Connection::new(stream), directory.to_owned()));
    }
}

async fn answer(mut connection: Connection, directory: PathBuf) {
    while let Ok((call, _)) = connection.receive::<Call>().await {
        let shutdown = call.request == Request::Shutdown;
        let result = match call.request {
            Request::Status => Ok(Reply::Status(status())),
            Request::Ready => Ok(Reply::Ready(format!("hostd {}", std::process::id()))),
            Request::Shutdown => {
                fs::write(directory.join(ASKED), "").unwrap();
                if directory.join(SLOW).exists() {
                    std::future::pending::<()>().await;
                }
                Ok(Reply::Done)
            }
            _ => Err(Refusal::new(Code::Failed, "this is only pretended", "ask another")),
        };
        connection.send(&Message::Done(result), None).await.unwrap();
        if shutdown {
            std::process::exit(0);
        }
    }
}

fn status() -> Status {
    Status {
        version: "0".to_owned(),
        driver: "fake".to_owned(),
        machines: 0,
        running: 0,
        memory_committed: ByteSize(0),
        memory_limit: ByteSize(0),
        pool_free: ByteSize(0),
        pool_size: ByteSize(0),
    }
}

#[test]
#[ignore = "the cases start it as berth-gateway"]
fn gateway() {
    let Some(directory) = directory() else { return };
    let port: u16 = std::env::var(PORT).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let key = PrivateKey::random(&mut UnwrapErr(SysRng), Algorithm::Ed25519).unwrap();
        let config = Arc::new(server::Config { keys: vec![key], ..server::Config::default() });
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // Whoever only looked whether the port is taken may be gone.
            let _ = server::run_stream(Arc::clone(&config), stream, Guest(directory.clone())).await;
        }
    });
}

/// A login that gets hostd's word, unless the gateway is cut off.
struct Guest(PathBuf);

impl server::Handler for Guest {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, user: &str, _: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        Ok(if user == READY_LOGIN { Auth::Accept } else { Auth::reject() })
    }

    async fn channel_open_session(
        &mut self,
        _channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        _line: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_success(channel)?;
        if self.0.join(CUT_OFF).exists() {
            session.extended_data(channel, 1, "berth: the host is unavailable\n".as_bytes())?;
            session.exit_status_request(channel, 7)?;
        } else {
            let client = Client::new(self.0.join("run/hostd.sock"));
            let answer = client.call(Caller::Gateway, Request::Ready).await;
            let (Reply::Ready(word), _) = answer.unwrap() else { return Err(russh::Error::Disconnect) };
            session.data(channel, word.into_bytes())?;
            session.exit_status_request(channel, 0)?;
        }
        session.eof(channel)?;
        session.close(channel)
    }
}
