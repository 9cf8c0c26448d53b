//! A secret goes where the server takes a request to be for its host, and nowhere else:
//! what else a request says of hosts, ports and connections leads it nowhere.

use crate::support::{Server, VALUE, World, header, secret, tls::client};
use berth_egress::control::Outcome;
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
};

const OTHER: &str = "sk-other-fedcba9876543210";

/// Two hosts, each with a secret of its own, and what they were asked.
fn world() -> (World, [Server; 2]) {
    let bearer = || vec![header("Authorization", "Bearer {}")];
    let world = World::new(vec![
        secret("api", &["api.example"], bearer(), VALUE),
        secret("other", &["other.example"], bearer(), OTHER),
    ]);
    let servers = [
        Server::start(&world, "api.example", "198.51.100.10:443"),
        Server::start(&world, "other.example", "198.51.100.11:443"),
    ];
    for name in ["api.example", "other.example"] {
        world.guest.run("getent", &["hosts", name]);
    }
    (world, servers)
}

/// TLS from the guest to `name`.
fn tls(
    world: &World,
    (name, address): (&str, &str),
    alpn: &[u8],
) -> StreamOwned<ClientConnection, TcpStream> {
    let config = client(world, alpn, &[]);
    let server = ServerName::try_from(name.to_owned()).unwrap();
    let connection = ClientConnection::new(Arc::new(config), server).unwrap();
    StreamOwned::new(connection, world.guest.connect(&format!("{address}:443")).unwrap())
}

/// Sends these lines over TLS to `name`, and returns all that comes back.
fn raw(world: &World, place: (&str, &str), request: &str) -> String {
    let mut stream = tls(world, place, b"http/1.1");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_forged_host_gets_no_secret() {
    berth_sys::needs_root!();
    let (mut world, servers) = world();
    let places = [("api.example", "198.51.100.10"), ("other.example", "198.51.100.11")];
    // `HERE` is the name in TLS, `THERE` the other one.
    for head in [
        "GET / HTTP/1.1\r\nHost: THERE",
        "GET / HTTP/1.1",
        "GET / HTTP/1.0",
        "GET / HTTP/1.1\r\nHost:",
        "GET / HTTP/1.1\r\nHost: HERE\r\nHost: THERE",
        "GET / HTTP/1.1\r\nHost: THERE\r\nHost: HERE",
        "GET / HTTP/1.1\r\nHost: HERE\r\nhost: HERE",
        "GET / HTTP/1.1\r\nHost: HERE, THERE",
        "GET / HTTP/1.1\r\nHost: HERE THERE",
        "GET / HTTP/1.1\r\nHost: HERE:443@THERE",
        "GET / HTTP/1.1\r\nHost: THERE@HERE",
        "GET / HTTP/1.1\r\nHost: HERE:THERE",
        "GET / HTTP/1.1\r\nHost: HERE:8443",
        "GET / HTTP/1.1\r\nHost: HERE:65979",
        "GET / HTTP/1.1\r\nHost: HERE:",
        "GET / HTTP/1.1\r\nHost: HERE.THERE",
        "GET / HTTP/1.1\r\nHost: HERE\\THERE",
        "GET / HTTP/1.1\r\nHost: HERE/THERE",
        "GET / HTTP/1.1\r\nHost: HERE\r\n : THERE",
        "GET / HTTP/1.1\r\n Host: THERE\r\nHost: HERE",
        "GET / HTTP/1.1\r\nHost : THERE\r\nHost: HERE",
        "GET /x://HERE/ HTTP/1.1\r\nHost: THERE",
        "GET /https://HERE/ HTTP/1.0",
        "GET https://THERE/ HTTP/1.1\r\nHost: HERE",
        "GET https://HERE/ HTTP/1.1\r\nHost: THERE",
        "GET https://HERE/ HTTP/1.1",
        "GET https://HERE:443@THERE/ HTTP/1.1\r\nHost: HERE",
        "GET https://THERE@HERE/ HTTP/1.1\r\nHost: HERE",
        "GET ftp://HERE/ HTTP/1.1\r\nHost: HERE",
        "GET x://THERE/ HTTP/1.1\r\nHost: HERE",
        "GET HERE:443 HTTP/1.1\r\nHost: HERE",
        "GET THERE HTTP/1.1\r\nHost: HERE",
        "CONNECT HERE:443 HTTP/1.1\r\nHost: HERE:443",
        "CONNECT THERE:443 HTTP/1.1\r\nHost: HERE",
    ] {
        for (here, there) in [(0, 1), (1, 0)] {
            let fill = |text: &str| text.replace("THERE", places[there].0).replace("HERE", places[here].0);
            let request = fill(&format!("{head}\r\nConnection: close\r\n\r\n"));
            let answer = raw(&world, places[here], &request);
            assert!(
                answer.contains(" 403 Forbidden\r\n") && !answer.contains(" 200 OK"),
                "{request}: {answer}"
            );
            world.refused(["secret api", "secret other"][here]);
        }
    }
    assert!(servers.iter().all(|server| server.seen().is_empty()), "nothing of it reached a server");
}

#[test]
fn the_server_is_asked_for_the_host_of_its_secret() {
    berth_sys::needs_root!();
    let (world, servers) = world();
    let place = ("api.example", "198.51.100.10");
    for (head, path) in [
        ("GET /a HTTP/1.1\r\nHost: api.example", "/a"),
        ("GET /a HTTP/1.1\r\nHost: API.Example:443", "/a"),
        ("GET /a HTTP/1.1\r\nHost: api.example.", "/a"),
        ("GET /x://other.example/ HTTP/1.1\r\nHost: api.example", "/x://other.example/"),
        ("GET //other.example/ HTTP/1.1\r\nHost: api.example", "//other.example/"),
        ("GET /?to=https://other.example/ HTTP/1.1\r\nHost: api.example", "/?to=https://other.example/"),
        ("GET https://api.example/a?b HTTP/1.1\r\nHost: api.example", "/a?b"),
        ("GET HTTPS://API.example:443/a HTTP/1.1\r\nHost: api.example", "/a"),
        ("TRACE /a HTTP/1.1\r\nHost: api.example", "/a"),
        // What belongs to this connection only is taken out, the host is not.
        ("GET /a HTTP/1.1\r\nHost: api.example\r\nConnection: host", "/a"),
        ("GET /a HTTP/1.0\r\nHost: api.example\r\nConnection: Host, authorization", "/a"),
        ("POST /a HTTP/1.1\r\nHost: api.example\r\nConnection: content-length\r\nContent-Length: 0", "/a"),
    ] {
        let answer = raw(&world, place, &format!("{head}\r\nConnection: close\r\n\r\n"));
        assert!(answer.contains(" 200 OK\r\n") && !answer.contains(VALUE), "{head}: {answer}");
        let seen = servers[0].last();
        assert_eq!(seen.uri, path, "{head}");
        assert_eq!(seen.headers["authorization"], format!("Bearer {VALUE}"), "{head}");
        let hosts: Vec<_> = seen.headers.get_all("host").iter().map(|host| host.to_str().unwrap()).collect();
        assert_eq!(hosts.len(), 1, "{head}: {hosts:?}");
        assert!(hosts[0].to_ascii_lowercase().starts_with("api.example"), "{head}: {hosts:?}");
    }
    assert!(servers[1].seen().is_empty());
}

/// One request of HTTP/2, whose headers are written as they are given.
fn ask_http2(stream: &mut impl Write, headers: &[(&str, &str)]) {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.extend([0, u8::try_from(name.len()).unwrap()]);
        block.extend(name.as_bytes());
        block.push(u8::try_from(value.len()).unwrap());
        block.extend(value.as_bytes());
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    bytes.extend(&u32::try_from(block.len()).unwrap().to_be_bytes()[1..]);
    bytes.extend([1, 5, 0, 0, 0, 1]);
    bytes.extend(block);
    stream.write_all(&bytes).unwrap();
}

#[test]
fn http2_names_the_host_once() {
    berth_sys::needs_root!();
    let (mut world, servers) = world();
    let place = ("api.example", "198.51.100.10");
    let [method, scheme, path] = [(":method", "GET"), (":scheme", "https"), (":path", "/a")];
    let authority = (":authority", "api.example");
    for headers in [
        &[method, scheme, path][..],
        &[method, scheme, path, ("host", "api.example")],
        &[method, scheme, path, (":authority", "other.example")],
        &[method, scheme, path, (":authority", "api.example:443@other.example")],
        &[method, scheme, path, (":authority", "other.example@api.example")],
        &[method, scheme, path, (":authority", "api.example:other.example")],
        &[method, scheme, path, authority, ("host", "other.example")],
        &[method, scheme, path, authority, ("host", "api.example"), ("host", "other.example")],
        &[method, scheme, (":path", "https://other.example/"), authority],
        &[method, scheme, (":path", "other.example/"), authority],
        &[method, scheme, (":path", "/ HTTP/1.1\r\nhost: other.example"), authority],
        &[method, (":scheme", "ftp"), path, authority],
        &[method, (":scheme", "https://other.example/"), path, authority],
        &[(":method", "GET / HTTP/1.1\r\nx:"), scheme, path, authority],
        &[(":method", "CONNECT"), authority],
        &[(":method", "CONNECT"), (":protocol", "websocket"), scheme, path, authority],
    ] {
        let mut stream = tls(&world, place, b"h2");
        ask_http2(&mut stream, headers);
        let refused = world.decision(|decision| decision.rule == "secret api");
        assert_eq!(refused.verdict, Outcome::Refused, "{headers:?}: {refused:?}");
        assert!(servers[0].seen().is_empty(), "{headers:?}");
    }
    for headers in [
        &[method, scheme, path, authority][..],
        &[method, scheme, path, authority, ("host", "API.example")],
        &[method, scheme, (":path", "/x://other.example/"), (":authority", "api.example:443")],
    ] {
        let mut stream = tls(&world, place, b"h2");
        ask_http2(&mut stream, headers);
        world.allowed("secret api");
        let seen = servers[0].last();
        assert_eq!(seen.headers["authorization"], format!("Bearer {VALUE}"), "{headers:?}");
        assert!(!seen.headers.contains_key("host"), "{headers:?}: {:?}", seen.headers);
    }
    assert!(servers[1].seen().is_empty());
}

#[test]
fn a_body_is_never_a_request() {
    berth_sys::needs_root!();
    let (world, servers) = world();
    let inner = "GET /smuggled HTTP/1.1\r\nHost: api.example\r\n\r\n";
    let length = format!("Content-Length: {}", inner.len());
    let whole = inner.to_owned();
    let chunks = format!("{:x}\r\n{inner}\r\n0\r\nX-After: 1\r\n\r\n", inner.len());
    for method in ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "TRACE", "PRI"] {
        for (headers, body) in [
            (length.clone(), &whole),
            (format!("{length}\r\nConnection: content-length"), &whole),
            (format!("{length}\r\nExpect: 100-continue"), &whole),
            ("Transfer-Encoding: chunked".to_owned(), &chunks),
            ("Transfer-Encoding: chunked\r\nConnection: transfer-encoding, trailer".to_owned(), &chunks),
            ("Transfer-Encoding: chunked\r\nTrailer: x-after\r\nTE: trailers".to_owned(), &chunks),
        ] {
            let before = servers[0].seen().len();
            let request = format!(
                "{method} /first HTTP/1.1\r\nHost: api.example\r\n{headers}\r\n\r\n{body}\
                 GET /last HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n"
            );
            let answer = raw(&world, ("api.example", "198.51.100.10"), &request);
            let asked: Vec<_> = servers[0].seen()[before..].iter().map(|seen| seen.uri.clone()).collect();
            assert_eq!(asked, ["/first", "/last"], "{request}: {answer}");
            assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{request}: {answer}");
        }
    }
}

#[test]
fn a_host_without_a_secret_is_given_none_whatever_it_is_called() {
    berth_sys::needs_root!();
    let (mut world, servers) = world();
    world.update(|terms| terms.secrets.truncate(1));
    // Its TLS is left closed, so that the server sees what the guest wrote, and no more.
    for head in [
        "GET /a HTTP/1.1\r\nHost: api.example",
        "GET https://api.example/a HTTP/1.1\r\nHost: api.example",
        "GET /https://api.example/ HTTP/1.1\r\nHost: other.example",
    ] {
        let request = format!("{head}\r\nConnection: close\r\n\r\n");
        let answer = raw(&world, ("other.example", "198.51.100.11"), &request);
        assert!(answer.contains(" 200 OK\r\n"), "{head}: {answer}");
        assert_eq!(servers[1].last().headers.get("authorization"), None, "{head}");
    }
    assert!(servers[0].seen().is_empty());
}

#[test]
fn only_a_websocket_is_switched_to() {
    berth_sys::needs_root!();
    let (mut world, servers) = world();
    for upgrades in ["Upgrade: tcp", "Upgrade: websocket, tcp", "Upgrade: websocket\r\nUpgrade: tcp"] {
        let request = format!(
            "GET /ws HTTP/1.1\r\nHost: api.example\r\nConnection: upgrade\r\n{upgrades}\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\
             GET /after HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n"
        );
        let answer = raw(&world, ("api.example", "198.51.100.10"), &request);
        assert!(answer.starts_with("HTTP/1.1 403"), "{upgrades}: {answer}");
        world.decision(|decision| decision.reason.contains("only WebSocket"));
    }
    assert!(servers[0].seen().is_empty());
}
