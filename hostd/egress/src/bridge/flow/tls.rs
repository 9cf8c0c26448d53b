//! Connections to port 443: by their ClientHello.

use super::{Connection, by_judgement};
use crate::{
    bridge::{
        inject,
        sni::{self, ClientHello, Hello},
    },
    control::Protocol,
};
use std::time::Duration;
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    time::{Instant, timeout_at},
};

/// Then it is a protocol in which the server speaks first.
const FIRST_BYTE: Duration = Duration::from_secs(2);
const WHOLE_HELLO: Duration = Duration::from_secs(10);

pub async fn serve(mut connection: Connection) {
    let (first, hello) = read_hello(&mut connection.stream).await;
    let Some(hello) = hello else {
        let judged = connection.machine.judge(None, connection.to).await;
        return by_judgement(connection, first, Protocol::Tcp, None, judged).await;
    };
    let name = hello.server_name.clone();
    let judged = connection.machine.judge(name.as_ref(), connection.to).await;
    if let Some(name) = &name
        && judged.verdict.allowed
        && !connection.machine.rules().for_tls(name, connection.to.port()).is_empty()
    {
        let tied = judged.name.as_ref() == Some(name);
        return inject::serve(connection, first, hello, name.clone(), tied).await;
    }
    by_judgement(connection, first, Protocol::Tls, name.as_ref(), judged).await;
}

/// What was read, and the hello if it is one.
async fn read_hello(stream: &mut TcpStream) -> (Vec<u8>, Option<ClientHello>) {
    let mut bytes = Vec::with_capacity(2048);
    let start = Instant::now();
    let mut deadline = start + FIRST_BYTE;
    loop {
        match timeout_at(deadline, stream.read_buf(&mut bytes)).await {
            Ok(Ok(1..)) => deadline = start + WHOLE_HELLO,
            _ => return (bytes, None),
        }
        match sni::parse(&bytes) {
            Hello::Incomplete => {}
            Hello::NotTls => return (bytes, None),
            Hello::Complete(hello) => return (bytes, Some(hello)),
        }
    }
}
