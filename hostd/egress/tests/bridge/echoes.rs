//! A guest that has an honest server say the value where a search may not look: the
//! placeholder becomes the value on its way, and servers repeat what they are asked.

use crate::support::{Server, VALUE, World, secret, tls::client};
use berth_types::egress::Projection;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Method, Request, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use std::sync::Arc;

fn world() -> (World, Server) {
    let world = World::new(vec![secret("KEY", &["api.example"], vec![Projection::Placeholder], VALUE)]);
    let server = Server::start(&world, "api.example", "198.51.100.10:443");
    (world, server)
}

#[test]
fn nothing_around_an_answers_body_says_the_value() {
    berth_sys::needs_root!();
    let (mut world, server) = world();
    let key = world.placeholder();
    for version in ["--http1.1", "--http2"] {
        for (query, code) in [
            (format!("x-echo={key}"), "200"),
            (format!("location=https://other.example/{key}"), "200"),
            // In the name of a header, however it is written there.
            (format!("{key}=x"), "200"),
            (format!("x-meta-{key}=x"), "200"),
            // Where a refusal might repeat it.
            (format!("content-encoding={key}"), "403"),
            (format!("grpc-encoding={key}"), "403"),
            (format!("content-type={key}"), "200"),
            // Nominated away, to hide that it cannot be searched.
            ("connection=content-encoding&content-encoding=br".to_owned(), "403"),
            ("connect-content-encoding=gzip".to_owned(), "403"),
        ] {
            let nominated = query.starts_with("connection=");
            if nominated && version == "--http2" {
                continue;
            }
            let ran = world.guest.curl(&[version, "-i", &format!("https://api.example/headers?{query}")]);
            ran.is(code).lacks(VALUE);
            assert!(server.last().uri.ends_with(&query.replace(&key, VALUE)), "{query}");
            // The helper looks for the value in what the log has.
            world.decision(|decision| decision.rule == "secret KEY");
        }
        // Echoed by the method that is made for it.
        let ran = world.guest.curl(&[
            version,
            "-i",
            "-X",
            "TRACE",
            "-H",
            &format!("X-Key: {key}"),
            "https://api.example/",
        ]);
        ran.is("200").lacks(VALUE).has(&key);
    }
}

#[test]
fn trailers_say_as_little() {
    berth_sys::needs_root!();
    let (world, _server) = world();
    world.guest.run("getent", &["hosts", "api.example"]);
    let key = world.placeholder();
    let config = Arc::new(client(&world, b"h2", &[]));
    let stream = world.guest.connect("198.51.100.10:443").unwrap();
    stream.set_nonblocking(true).unwrap();
    world.runtime.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let name = ServerName::try_from("api.example").unwrap();
        let stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await.unwrap();
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        // To a request for the head alone there is no body, and yet there are trailers.
        for method in [Method::GET, Method::HEAD] {
            let url = format!("https://api.example/trailers?x-echo={key}&{key}=x");
            let request = Request::builder().method(&method).uri(url).body(Empty::<Bytes>::new()).unwrap();
            let answer = sender.send_request(request).await.unwrap().into_body();
            let trailers = answer.collect().await.unwrap().trailers().cloned().unwrap();
            assert_eq!(trailers["x-echo"], key, "{method}");
            assert_eq!(trailers.len(), 1, "{method}: {trailers:?}");
        }
    });
}

#[test]
fn half_a_value_is_not_passed_on() {
    berth_sys::needs_root!();
    let (mut world, server) = world();
    for version in ["--http1.1", "--http2"] {
        let ran = world.guest.curl(&[
            version,
            "-H",
            "Range: bytes=0-9",
            "-H",
            "Request-Range: bytes=0-9",
            "-H",
            "X-MS-Range: bytes=0-9",
            "-H",
            "Accept-Encoding: br",
            "-H",
            "Connect-Accept-Encoding: gzip",
            "https://api.example/",
        ]);
        ran.is("200");
        let headers = server.last().headers;
        for name in ["range", "request-range", "x-ms-range"] {
            assert!(!headers.contains_key(name), "{headers:?}");
        }
        for name in ["accept-encoding", "connect-accept-encoding"] {
            assert_eq!(headers[name], "identity", "{headers:?}");
        }
        // A server that gives a part all the same, or only counts otherwise.
        for (query, code) in [
            ("content-range=bytes=0-9/20", "403"),
            ("content-type=multipart/byteranges", "403"),
            ("content-range=0-24/1000", "206"),
        ] {
            let ran = world.guest.curl(&[version, &format!("https://api.example/part?{query}")]);
            ran.is(code);
            if code == "403" {
                ran.has("part of an answer");
                assert!(world.refused("secret KEY").reason.contains("part of an answer"));
            }
        }
    }
}
