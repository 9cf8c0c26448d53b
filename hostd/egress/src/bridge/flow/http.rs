//! Connections to port 80. A secret never goes over plain HTTP, so a request
//! for a secret's host is refused; everything else passes untouched after its
//! first head was read, and in an allowlist each further one.

use super::{Connection, by_judgement};
use crate::{
    bridge::{
        addressee, dial,
        dns::INFO_HOST,
        machine::Claim,
        refuse::{self, Refused},
    },
    control::{Outcome, Protocol},
};
use berth_types::egress::HostName;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

const FIRST_BYTE: Duration = Duration::from_secs(2);
const WHOLE_HEAD: Duration = Duration::from_secs(30);
const MAX_HEADERS: usize = 100;

pub async fn serve(mut connection: Connection) {
    let machine = connection.machine.clone();
    let limit = machine.host.shared().limits.header_bytes as usize;
    let read = tokio::select! {
        read = read_head(&mut connection.stream, limit) => Some(read),
        () = machine.unlinked() => None,
    };
    let Some((bytes, head)) = read else { return dial::reset(connection.stream) };
    if *connection.to.ip() == connection.machine.gateway && connection.to.port() == 80 {
        return info(connection, head).await;
    }
    let host = match head {
        Head::Request { host, .. } => host,
        Head::Incomplete | Head::NotHttp => {
            let judged = connection.machine.judge(Claim::Missing, connection.to).await;
            return by_judgement(connection, bytes, Protocol::Tcp, judged).await;
        }
    };
    let claim = host.clone().map_or(Claim::Missing, Claim::Name);
    let judged = connection.machine.judge(claim, connection.to).await;
    let named = host.as_ref().or(judged.name.as_ref());
    if let Some(secret) = named.and_then(|name| connection.machine.rules().for_plain(name)) {
        let refused = Refused::new(secret.rule(), "plain HTTP never carries a secret", "use https");
        let mut decision = connection.decision(Protocol::Http, named);
        decision.rule = refused.rule.clone();
        decision.reason = refused.message.clone();
        decision.up = bytes.len() as u64;
        connection.machine.host.reporter.decided(decision);
        return answer(connection, &refuse::plain(&refused)).await;
    }
    by_judgement(connection, bytes, Protocol::Http, judged).await;
}

/// What was read, and what it is.
async fn read_head(stream: &mut TcpStream, limit: usize) -> (Vec<u8>, Head) {
    let start = Instant::now();
    let mut deadline = start + FIRST_BYTE;
    let mut bytes = Vec::with_capacity(1024);
    loop {
        match timeout_at(deadline, stream.read_buf(&mut bytes)).await {
            Ok(Ok(1..)) => deadline = start + WHOLE_HEAD,
            _ => return (bytes, Head::NotHttp),
        }
        match parse(&bytes) {
            Head::Incomplete if bytes.len() < limit => {}
            Head::Incomplete => return (bytes, Head::NotHttp),
            head => return (bytes, head),
        }
    }
}

/// Says something and closes, without resetting what was said.
async fn answer(mut connection: Connection, text: &[u8]) {
    let said = async {
        connection.stream.write_all(text).await?;
        connection.stream.shutdown().await?;
        // What the guest still sends is read away, or it would see a reset.
        let mut scratch = [0u8; 4096];
        while connection.stream.read(&mut scratch).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    let _ = timeout(Duration::from_secs(2), said).await;
}

/// `http://berth.internal/`: what the machine may know of itself.
async fn info(connection: Connection, head: Head) {
    let mut decision = connection.decision(Protocol::Http, INFO_HOST.parse().ok().as_ref());
    decision.verdict = Outcome::Allowed;
    decision.rule = "information".to_owned();
    let document = connection.machine.rules().info.clone();
    let text = match head {
        Head::Request { get: true, root: true, .. } => refuse::document("200 OK", &document),
        Head::Request { get: true, .. } => {
            refuse::document("404 Not Found", b"{\"error\":\"there is only /\"}")
        }
        Head::Request { .. } => refuse::document("405 Method Not Allowed", b"{\"error\":\"only GET\"}"),
        Head::Incomplete | Head::NotHttp => refuse::document("400 Bad Request", b"{\"error\":\"no HTTP\"}"),
    };
    decision.down = text.len() as u64;
    connection.machine.host.reporter.decided(decision);
    answer(connection, &text).await;
}

#[derive(Debug, PartialEq, Eq)]
pub enum Head {
    Incomplete,
    NotHttp,
    Request { host: Option<HostName>, get: bool, root: bool },
}

pub fn parse(bytes: &[u8]) -> Head {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Head::Incomplete,
        Err(_) => return Head::NotHttp,
    }
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let headers = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let hosts = headers.map(|header| std::str::from_utf8(header.value).ok());
    Head::Request {
        host: addressee::named(method, target, hosts),
        get: method == "GET",
        root: matches!(target.split('?').next(), Some("/")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let host = |text: &[u8]| match parse(text) {
            Head::Request { host, .. } => host.map(String::from),
            other => panic!("{other:?}"),
        };
        assert_eq!(host(b"GET / HTTP/1.1\r\nHost: A.example:80\r\n\r\n").as_deref(), Some("a.example"));
        assert_eq!(
            host(b"GET http://b.example/x HTTP/1.1\r\nHost: b.example:80\r\n\r\n").as_deref(),
            Some("b.example")
        );
        for two in [
            "GET http://b.example/ HTTP/1.1\r\nHost: a.example",
            "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b",
            "GET /x://a.example/ HTTP/1.0",
            "GET x://a.example/ HTTP/1.1\r\nHost: a.example",
        ] {
            assert_eq!(host(format!("{two}\r\n\r\n").as_bytes()), None, "{two}");
        }
        assert_eq!(
            host(b"GET /x://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n").as_deref(),
            Some("a.example")
        );
        assert_eq!(host(b"CONNECT c.example:443 HTTP/1.1\r\n\r\n").as_deref(), Some("c.example"));
        assert_eq!(host(b"GET / HTTP/1.0\r\n\r\n"), None);
        assert_eq!(host(b"GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n"), None);
        assert_eq!(parse(b"GET / HT"), Head::Incomplete);
        assert_eq!(parse(b"\x16\x03\x01"), Head::NotHttp);
    }
}
