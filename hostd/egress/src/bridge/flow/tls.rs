//! Connections to port 443: by their ClientHello.

use super::{Connection, by_judgement};
use crate::{
    bridge::{
        dial, inject,
        machine::Claim,
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

const PORT: u16 = 443;
/// Then it is a protocol in which the server speaks first.
const FIRST_BYTE: Duration = Duration::from_secs(2);
/// Guests may be slow, and are stopped at times.
const WHOLE_HELLO: Duration = Duration::from_secs(30);

pub async fn serve(mut connection: Connection) {
    let patience = if expects_tls(&connection) { WHOLE_HELLO } else { FIRST_BYTE };
    let machine = connection.machine.clone();
    let read = tokio::select! {
        read = read_hello(&mut connection.stream, patience) => Some(read),
        () = machine.unlinked() => None,
    };
    let Some((first, hello)) = read else { return dial::reset(connection.stream) };
    // On a port that only a secret's rule makes one of TLS, another protocol is judged
    // as on every other port.
    let missing = if connection.to.port() == PORT { Claim::Missing } else { Claim::Unread };
    let Some(hello) = hello else {
        let judged = connection.machine.judge(missing, connection.to).await;
        return by_judgement(connection, first, Protocol::Tcp, judged).await;
    };
    let name = hello.server_name.clone();
    let judged = connection.machine.judge(name.clone().map_or(missing, Claim::Name), connection.to).await;
    if let Some(name) = &name
        && judged.verdict.allowed
        && !connection.machine.rules().for_tls(name, connection.to.port()).is_empty()
    {
        let tied = judged.is_tied();
        return inject::serve(connection, first, hello, name.clone(), tied).await;
    }
    by_judgement(connection, first, Protocol::Tls, judged).await;
}

/// Is it the address of a host whose TLS a rule opens?
fn expects_tls(connection: &Connection) -> bool {
    let rules = connection.machine.rules();
    let names = connection.machine.names.of(*connection.to.ip());
    names.iter().any(|name| !rules.for_tls(name, connection.to.port()).is_empty())
}

/// What was read, and the hello if it is one.
async fn read_hello(stream: &mut TcpStream, patience: Duration) -> (Vec<u8>, Option<ClientHello>) {
    let mut bytes = Vec::with_capacity(2048);
    let start = Instant::now();
    let mut deadline = start + patience;
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
