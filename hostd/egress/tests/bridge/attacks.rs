//! What must not work, whoever tries.

use crate::support::{
    Server, VALUE, World,
    authority::{Authority, Identity},
    bearer, secret,
    tls::client,
};
use berth_egress::control::{Outcome, Protocol};
use berth_types::egress::Projection;
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
};

fn world() -> (World, Server, Server) {
    let (world, server) = bearer();
    let other = Server::start(&world, "other.example", "198.51.100.11:443");
    (world, server, other)
}

/// TLS from the guest, with whatever name and protocol it claims.
fn tls(world: &World, address: &str, name: &str, alpn: &[u8]) -> StreamOwned<ClientConnection, TcpStream> {
    let config = client(world, alpn, &[]);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, world.guest.connect(address).unwrap())
}

/// Sends raw HTTP/1.1 and returns all that comes back.
fn raw(world: &World, request: &[u8]) -> String {
    world.guest.run("getent", &["hosts", "api.example"]);
    let mut stream = tls(world, "198.51.100.10:443", "api.example", b"http/1.1");
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn plain_http_never_carries_a_secret() {
    berth_sys::needs_root!();
    let (mut world, ..) = world();
    let ran = world.guest.curl(&["http://api.example/"]);
    ran.is("403").has("secret openai").has("use https").lacks(VALUE);
    assert_eq!(world.refused("secret openai").protocol, Protocol::Http);
    // Nor through a proxy that the guest asks on the same port.
    let ran = world.guest.curl(&["-x", "http://198.51.100.11:80", "https://api.example/"]);
    assert_ne!(ran.status, 0, "{ran:?}");
    world.refused("secret openai");
}

#[test]
fn host_and_tls_name_have_to_agree() {
    berth_sys::needs_root!();
    let (mut world, server, other) = world();
    for version in ["--http1.1", "--http2"] {
        let ran = world.guest.curl(&[version, "-H", "Host: other.example", "https://api.example/"]);
        ran.is("403").has("secret openai").lacks(VALUE);
        world.refused("secret openai");
    }
    let answer =
        raw(&world, b"GET https://other.example/ HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(world.refused("secret openai").reason.contains("TLS name"));
    let answer = raw(
        &world,
        b"GET / HTTP/1.1\r\nHost: api.example\r\nHost: other.example\r\nConnection: close\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(world.refused("secret openai").reason.contains("two Host headers"));
    assert!(server.seen().is_empty() && other.seen().is_empty());
}

#[test]
fn an_address_of_the_guests_own_gets_nothing() {
    berth_sys::needs_root!();
    let (mut world, server, other) = world();
    // The name of a secret's host, the address of another server.
    let ran = world.guest.curl(&["--resolve", "api.example:443:198.51.100.11", "https://api.example/"]);
    ran.is("403").has("secret openai").has("was not resolved").lacks(VALUE);
    world.refused("secret openai");
    // Another name at the secret's address: nothing is opened, nothing injected.
    let ran =
        world.guest.curl(&["-k", "--resolve", "other.example:443:198.51.100.10", "https://other.example/"]);
    ran.is("200").lacks(VALUE);
    assert_eq!(server.last().headers.get("authorization"), None);
    assert!(other.seen().is_empty());
}

#[test]
fn a_redirect_is_not_followed_by_the_secret() {
    berth_sys::needs_root!();
    let (mut world, server, other) = world();
    world.guest.curl(&["-L", "https://api.example/redirect"]).is("200").lacks(VALUE);
    assert!(server.last().headers.contains_key("authorization"));
    assert_eq!(other.last().uri, "/taken");
    assert_eq!(other.last().headers.get("authorization"), None);
    assert_eq!(world.allowed("secret openai").host.unwrap().as_str(), "api.example");
    assert_eq!(world.allowed("open").host.unwrap().as_str(), "other.example");
}

#[test]
fn a_proxy_of_the_guests_own_gets_nothing() {
    berth_sys::needs_root!();
    let (mut world, server, _) = world();
    let answer = raw(&world, b"CONNECT api.example:443 HTTP/1.1\r\nHost: api.example\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret openai"), "{answer}");
    assert!(world.refused("secret openai").reason.contains("CONNECT"));
    // Elsewhere it is a server like any other: what it is told, the guest itself knows.
    let proxy = world.servers.listen("198.51.100.11:3128".parse().unwrap());
    proxy.set_nonblocking(false).unwrap();
    let told = std::thread::spawn(move || {
        let (mut stream, _) = proxy.accept().unwrap();
        let mut told = [0u8; 1024];
        let count = stream.read(&mut told).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let mut more = vec![0u8; 4096];
        let further = stream.read(&mut more).unwrap();
        [&told[..count], &more[..further]].concat()
    });
    let ran = world.guest.curl(&["-x", "http://198.51.100.11:3128", "https://api.example/"]);
    assert_ne!(ran.status, 0, "{ran:?}");
    let told = String::from_utf8_lossy(&told.join().unwrap()).into_owned();
    assert!(told.starts_with("CONNECT api.example:443") && !told.contains(VALUE), "{told}");
    assert_eq!(world.allowed("open").port, Some(3128));
    assert!(server.seen().is_empty());
}

#[test]
fn a_value_cannot_split_a_header() {
    berth_sys::needs_root!();
    // Such a value is refused when it is set; the bridge does not count on that.
    let keys = |value: &str| secret("KEY", &["api.example"], vec![Projection::Placeholder], value);
    let mut world = World::new(vec![keys("sk-live\r\nX-Evil: yes")]);
    let server = Server::start(&world, "api.example", "198.51.100.10:443");
    let header = format!("X-Key: {}", world.placeholder());
    for version in ["--http1.1", "--http2"] {
        let ran = world.guest.curl(&[version, "-H", &header, "https://api.example/"]);
        ran.is("403").has("secret KEY").has("one line of visible ASCII").lacks("X-Evil");
        assert!(world.refused("secret KEY").reason.contains("one line"));
    }
    assert!(server.seen().is_empty(), "{:?}", server.seen());
    // What the guest puts around a placeholder cannot either.
    world.update(|terms| terms.secrets = vec![keys(VALUE)]);
    let placeholder = world.placeholder();
    world.guest.curl(&[&format!("https://api.example/%0d%0aX-Evil:%20yes{placeholder}")]).is("200");
    assert!(!server.last().headers.contains_key("x-evil"));
    let split = format!("GET / HTTP/1.1\r\nHost: api.example\r\nX: {placeholder}\rX-Evil: yes\r\n\r\n");
    let answer = raw(&world, split.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret KEY"), "{answer}");
    assert!(world.refused("secret KEY").reason.contains("bare CR"));
}

#[test]
fn requests_cannot_be_smuggled() {
    berth_sys::needs_root!();
    let (mut world, server, _) = world();
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: api.example\r\n\r\n";
    for (head, body, why) in [
        ("Content-Length: 49\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", "two lengths"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 49\r\n", "0\r\n\r\n", "two lengths"),
        ("Content-Length: 0\r\nContent-Length: 44\r\n", "", "two lengths"),
        ("Content-Length: +44\r\n", "", "length of the request"),
        ("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n", "transfer encoding"),
        ("X: a\rTransfer-Encoding: chunked\r\n", "", "bare CR"),
        ("X: a\nTransfer-Encoding: chunked\r\n", "", "bare LF"),
        ("Content-Length : 44\r\n", "", "cannot be read"),
        ("X: a\r\n Content-Length: 44\r\n", "", "folded line"),
        ("Transfer-Encoding: chunked\r\n", "5;x=\"\r\nhello\r\n0\r\n\r\n", "chunk extensions"),
        ("Transfer-Encoding: chunked\r\n", "5\nhello\r\n0\r\n\r\n", "a chunk"),
        ("Transfer-Encoding: chunked\r\n", "0\r\nContent-Length: 44\r\n\r\n", "trailers"),
    ] {
        // Also later on a connection that was good until then.
        for (before, answers) in [("", 1), ("GET /good HTTP/1.1\r\nHost: api.example\r\n\r\n", 2)] {
            let request =
                format!("{before}POST /bad HTTP/1.1\r\nHost: api.example\r\n{head}\r\n{body}{smuggled}");
            let answer = raw(&world, request.as_bytes());
            assert_eq!(answer.matches("HTTP/1.1 200").count(), answers - 1, "{head:?}: {answer}");
            assert_eq!(answer.matches("HTTP/1.1 403").count(), 1, "{head:?}: {answer}");
            assert!(answer.contains("secret openai") && answer.contains(why), "{head:?}: {answer}");
            assert!(server.seen().iter().all(|seen| seen.uri != "/smuggled"), "{head:?}");
            let refused = world.refused("secret openai");
            assert!(refused.reason.contains(why), "{head:?}: {refused:?}");
        }
    }
    // Nothing of a bad head reached the server; of a bad body only what came before.
    assert!(server.seen().iter().all(|seen| seen.uri == "/good" || seen.body.is_empty()));
    // A connection header cannot strip the secret at the next hop.
    raw(&world, b"GET /hop HTTP/1.1\r\nHost: api.example\r\nConnection: close, authorization\r\n\r\n");
    assert_eq!(server.last().headers["authorization"], format!("Bearer {VALUE}"));
    assert!(!server.last().headers.contains_key("connection"));
}

#[test]
fn a_server_has_to_prove_its_name() {
    berth_sys::needs_root!();
    let (mut world, ..) = world();
    world.guest.run("getent", &["hosts", "api.example"]);
    let stranger = Authority::new("a stranger");
    let identities = [
        ("another name", world.public.identity("evil.example")),
        ("expired", world.public.issue("api.example", true)),
        ("another authority", stranger.identity("api.example")),
        ("its own", Identity::self_signed("api.example")),
    ];
    for (number, (what, identity)) in identities.into_iter().enumerate() {
        let address = format!("198.51.100.{}", 13 + number);
        let server = Server::with(&world, &format!("{address}:443"), identity, None);
        world.settings.hosts.insert("api.example".parse().unwrap(), vec![address.parse().unwrap()]);
        world.runtime.block_on(world.bridge.configure(world.settings.clone())).unwrap();
        // The bridge answers from memory for a while; a new machine has none.
        world.runtime.block_on(world.bridge.unlink(world.machine.clone())).unwrap();
        let guest = crate::support::guest::Guest::new(world.directory.path(), &authorities(&world));
        world.machine = berth_types::MachineId::random();
        world.link(&world.machine, &guest);
        let ran = guest.curl(&["https://api.example/"]);
        ran.is("403").has("secret openai").has("certificate").lacks(VALUE);
        assert!(server.seen().is_empty(), "{what}");
        assert!(world.refused("secret openai").reason.contains("certificate"), "{what}");
    }
}

fn authorities(world: &World) -> String {
    format!("{}{}", world.settings.authority_certificate, world.public.pem())
}

#[test]
fn a_secret_that_cannot_be_applied_fails_closed() {
    berth_sys::needs_root!();
    let world =
        World::new(vec![secret("corp", &["api.example"], vec![Projection::ClientCertificate], "no pem")]);
    let server = Server::start(&world, "api.example", "198.51.100.10:443");
    world.guest.curl(&["https://api.example/"]).is("403").has("secret corp");
    let ran = world.guest.curl(&["-H", "Accept: text/html", "https://api.example/"]);
    ran.is("403").has("berth: refused by secret corp");
    assert!(server.seen().is_empty());
}

#[test]
fn headers_of_http2_cannot_be_tricked() {
    berth_sys::needs_root!();
    let (mut world, server, _) = world();
    world.guest.run("getent", &["hosts", "api.example"]);
    // Frames by hand: the preface, empty settings, then a HEADERS frame.
    let open = |world: &World| {
        let mut stream = tls(world, "198.51.100.10:443", "api.example", b"h2");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        stream
    };
    let literal = |name: &str, value: &str| {
        let mut bytes = vec![0, u8::try_from(name.len()).unwrap()];
        bytes.extend(name.as_bytes());
        bytes.push(u8::try_from(value.len()).unwrap());
        bytes.extend(value.as_bytes());
        bytes
    };
    let frame = |stream: u32, block: &[u8]| {
        let mut bytes = u32::try_from(block.len()).unwrap().to_be_bytes()[1..].to_vec();
        bytes.extend([1, 5]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(block);
        bytes
    };
    let good = [literal(":method", "GET"), literal(":scheme", "https"), literal(":path", "/")].concat();
    for (attack, extra) in [
        (
            "two authorities",
            [literal(":authority", "api.example"), literal(":authority", "other.example")].concat(),
        ),
        ("an upper case name", [literal(":authority", "api.example"), literal("X-Y", "z")].concat()),
        ("a line break", [literal(":authority", "api.example"), literal("x", "a\r\nb: c")].concat()),
        ("a pseudo-header after others", [literal("x", "y"), literal(":authority", "api.example")].concat()),
        (
            "a connection header",
            [literal(":authority", "api.example"), literal("transfer-encoding", "chunked")].concat(),
        ),
        ("two paths", [literal(":authority", "api.example"), literal(":path", "/x")].concat()),
    ] {
        let mut stream = open(&world);
        stream.write_all(&frame(1, &[good.clone(), extra].concat())).unwrap();
        stream.sock.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(server.seen().is_empty(), "{attack}: {:?}", server.seen());
        let refused = world.refused("secret openai");
        assert!(refused.reason.contains("rules of HTTP/2"), "{attack}: {refused:?}");
    }
    // A table of headers that is larger than was offered: 16 MiB.
    let mut stream = open(&world);
    stream.write_all(&frame(1, &[&[0x3f, 0xe1, 0xff, 0xff, 0x07][..], &good].concat())).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    assert!(server.seen().is_empty());
    assert!(world.refused("secret openai").reason.contains("HTTP/2"));
    // Streams that are reset as soon as they are opened.
    let mut stream = open(&world);
    let block = [good, literal(":authority", "api.example")].concat();
    for number in 0..20_000u32 {
        let id = number * 2 + 1;
        let mut reset = vec![0, 0, 4, 3, 0];
        reset.extend(id.to_be_bytes());
        reset.extend([0, 0, 0, 8]);
        if stream.write_all(&[frame(id, &block), reset].concat()).is_err() {
            break;
        }
    }
    drop(stream);
    assert!(server.seen().len() < 5_000, "{} of 20000 streams reached the server", server.seen().len());
    let overdone = world.decision(|decision| decision.reason.contains("overdoes it"));
    assert_eq!((overdone.verdict, overdone.rule.as_str()), (Outcome::Refused, "secret openai"));
    world.guest.curl(&["--http2", "https://api.example/still-here"]).is("200");
    let decision = world.decision(|decision| decision.verdict == Outcome::Allowed && decision.down > 0);
    assert_eq!(decision.rule, "secret openai");
}
