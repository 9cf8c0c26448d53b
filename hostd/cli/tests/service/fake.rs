//! The daemons of the cases: this test program itself, started under their names.

use berth_api::{Call, Connection, Message, Reply, Request, Status};
use berth_types::{ByteSize, Code, Refusal};
use std::{
    fs,
    io::Write,
    net::TcpListener,
    path::{Path, PathBuf},
};
use tokio::net::UnixListener;

/// Where the case keeps its files; set only in what it starts.
pub const DIRECTORY: &str = "BERTH_FAKE_DIRECTORY";
pub const PORT: &str = "BERTH_FAKE_PORT";

/// Files that change how hostd behaves, or that it leaves.
pub const BROKEN: &str = "broken";
pub const SLOW: &str = "slow";
pub const ASKED: &str = "asked";

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
    let listener = UnixListener::bind(socket).unwrap();
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
    if directory().is_none() {
        return;
    }
    let port = std::env::var(PORT).unwrap().parse().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    for stream in listener.incoming() {
        // Whoever only looked whether the port is taken may be gone.
        let _ = stream.and_then(|mut stream| stream.write_all(b"SSH-2.0-fake\r\n"));
    }
}
