//! Protocols that stream, switch, or are not HTTP at all.

use crate::support::{
    Server, VALUE, World, bearer,
    git::{Sshd, repository},
    guest::Ran,
    secret,
    tls::client,
};
use berth_egress::{control::Outcome, public_host_key};
use berth_types::egress::Projection;
use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::{Request, body::Frame, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use std::{convert::Infallible, sync::Arc};
use tokio::sync::mpsc;

fn world() -> (World, Server) {
    let (world, server) = bearer();
    world.guest.run("getent", &["hosts", "api.example"]);
    (world, server)
}

#[test]
fn grpc_streams_both_ways_and_keeps_its_trailers() {
    berth_sys::needs_root!();
    let (mut world, server) = world();
    let config = Arc::new(client(&world, b"h2", &[]));
    let stream = world.guest.connect("198.51.100.10:443").unwrap();
    stream.set_nonblocking(true).unwrap();
    world.runtime.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let name = ServerName::try_from("api.example").unwrap();
        let stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await.unwrap();
        let (mut sender, connection) =
            conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let (messages, receiver) = mpsc::channel::<Frame<Bytes>>(1);
        let body = StreamBody::new(futures_util::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|frame| (Ok::<_, Infallible>(frame), receiver))
        }))
        .boxed_unsync();
        let request = Request::post("https://api.example/grpc")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-accept-encoding", "gzip")
            .body(body)
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/grpc");
        let mut answers = response.into_body();
        for number in 0..5u8 {
            // Each answer before the next question: nothing waits for the end.
            let mut message = vec![0, 0, 0, 0, 27, number];
            message.extend(VALUE.as_bytes());
            // It ends as a secret begins, and must not be held back for that.
            message.extend(&VALUE.as_bytes()[..2]);
            messages.send(Frame::data(Bytes::from(message.clone()))).await.unwrap();
            let mut answer = Vec::new();
            while answer.len() < message.len() {
                answer.extend(answers.frame().await.unwrap().unwrap().into_data().unwrap());
            }
            assert_eq!(answer.len(), message.len());
            assert_eq!(answer[..6], message[..6]);
            assert!(!String::from_utf8_lossy(&answer).contains(VALUE), "a server echoes it");
        }
        drop(messages);
        let trailers = answers.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
    });
    let seen = server.last();
    assert_eq!(seen.headers["authorization"], format!("Bearer {VALUE}"));
    assert_eq!(
        (&seen.headers["te"], &seen.headers["grpc-accept-encoding"]),
        (&"trailers".parse().unwrap(), &"identity".parse().unwrap())
    );
    assert_eq!(world.allowed("secret openai").up, 5 * 32);
}

/// The client of python3-websocket, which Debian's own Python has.
fn websocket(world: &World, script: &str) -> Ran {
    world.guest.run("/usr/bin/python3", &["-c", script])
}

const CONVERSATION: &str = r#"
import websocket
there = websocket.create_connection("wss://api.example/ws", timeout=20,
    header=["Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"])
for asked in ["hello", "text", "escaped", "binary", "fragments", "large", "héllo"]:
    there.send(asked)
    told = there.recv()
    told = told.decode() if isinstance(told, bytes) else told
    print(asked, len(told), told.strip("xy"))
there.close()
print(there.sock is None)
"#;

#[test]
fn a_websocket_gets_the_header_and_loses_the_value_again() {
    berth_sys::needs_root!();
    let (mut world, server) = world();
    let placeholder = world.placeholder();
    let ran = websocket(&world, CONVERSATION);
    assert_eq!(ran.status, 0, "{ran:?}");
    ran.lacks(VALUE);
    let bearer = format!("Bearer {placeholder}");
    let lines: Vec<&str> = ran.out.lines().collect();
    let whole = |asked: &str, more: usize| format!("{asked} {} {bearer}", bearer.len() + more);
    let cut = format!("Bearer {}", &placeholder[..VALUE.len()]);
    assert_eq!(
        lines,
        [
            "hello 5 hello",
            &whole("text", 0),
            &whole("escaped", 0),
            &format!("binary {} {cut}", cut.len()),
            &whole("fragments", 0),
            &whole("large", 300_000),
            "héllo 5 héllo",
            "True",
        ]
    );
    let seen = server.last();
    assert_eq!(seen.headers["authorization"], format!("Bearer {VALUE}"));
    assert!(!seen.headers.contains_key("sec-websocket-extensions"), "{:?}", seen.headers);
    let decision = world.decision(|decision| decision.verdict == Outcome::Allowed && decision.up > 0);
    assert!(decision.down > 300_000 && decision.reason.contains("taken out"), "{decision:?}");
}

#[test]
fn a_websocket_that_compresses_is_refused() {
    berth_sys::needs_root!();
    let (mut world, _server) = world();
    let ran = websocket(
        &world,
        "import websocket\ntry:\n  websocket.create_connection('wss://api.example/deflate', timeout=20)\n\
        except websocket.WebSocketBadStatusException as error:\n  print(error.status_code)",
    );
    assert_eq!(ran.out, "403\n", "{ran:?}");
    assert!(world.refused("secret openai").reason.contains("extension of WebSocket"));
}

const WORK: &str = "set -e; cd \"$1\"; git clone -q \"$2\" work; cd work; git config user.name me; \
    git config user.email me@example.com; git checkout -q -b main; echo hello > file; git add file; \
    git commit -q -m one; git push -q origin main; git ls-remote \"$2\"; cd ..; git clone -q \"$2\" again; cat again/file";

#[test]
fn git_clones_and_pushes_over_https() {
    berth_sys::needs_root!();
    let basic = vec![Projection::Basic { user: "me".to_owned() }];
    let world = World::new(vec![secret("git", &["git.example"], basic, VALUE)]);
    repository(world.directory.path());
    let server = Server::start(&world, "git.example", "198.51.100.12:443");
    server.serve_git(world.directory.path());
    let directory = world.directory.path().to_str().unwrap();
    let ran = world.guest.run("sh", &["-c", WORK, "sh", directory, "https://git.example/repo.git"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    ran.has("refs/heads/main").has("hello").lacks(VALUE);
    assert!(server.seen().iter().any(|seen| seen.uri.ends_with("/git-receive-pack")));
}

#[test]
fn git_pushes_over_ssh_with_a_key_that_the_guest_has_not() {
    berth_sys::needs_root!();
    let mut world = World::new(Vec::new());
    let repository = repository(world.directory.path());
    let sshd = Sshd::start(&world, "git.example", "198.51.100.12");
    let key = |known_hosts: &str| {
        let projection =
            Projection::Ssh { user: Some("root".to_owned()), known_hosts: vec![known_hosts.to_owned()] };
        secret("git-ssh", &["git.example"], vec![projection], &sshd.key)
    };
    let known = key(&sshd.known_hosts);
    world.update(|terms| terms.secrets = vec![known]);
    let directory = world.directory.path();
    let hosts = directory.join("known_hosts");
    let host_key = public_host_key(&world.settings.authority_key).unwrap();
    std::fs::write(&hosts, format!("git.example {host_key}\n")).unwrap();
    let options =
        "-F none -o IdentityAgent=none -o IdentityFile=none -o BatchMode=yes -o GlobalKnownHostsFile=none";
    let ssh =
        format!("export GIT_SSH_COMMAND='ssh {options} -o UserKnownHostsFile={}'; {WORK}", hosts.display());
    let url = format!("ssh://git@git.example{}", repository.display());
    let ran = world.guest.run("sh", &["-c", &ssh, "sh", directory.to_str().unwrap(), &url]);
    assert_eq!(ran.status, 0, "{ran:?}");
    ran.has("refs/heads/main").has("hello");
    assert_eq!(world.allowed("secret git-ssh").host.unwrap().as_str(), "git.example");
    // Another host key than the one that is known: nothing is sent.
    let stranger = format!("git.example {host_key}");
    let unknown = key(&stranger);
    world.update(|terms| terms.secrets = vec![unknown]);
    let list = format!(
        "export GIT_SSH_COMMAND='ssh {options} -o UserKnownHostsFile={}'; git ls-remote {url}",
        hosts.display()
    );
    let ran = world.guest.run("sh", &["-c", &list]);
    assert_ne!(ran.status, 0);
    assert!(ran.err.contains("berth: refused by secret git-ssh"), "{ran:?}");
    assert!(world.refused("secret git-ssh").reason.contains("known_hosts"));
}
