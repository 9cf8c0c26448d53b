//! What the gateway bears, and what it says when it is too much.

use crate::support::{self, Service, wait_for};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::{Duration, Instant},
};
use tokio::net::TcpSocket;

/// A connection from one of loopback's many addresses.
fn connect(service: &Service, from: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        socket.connect(SocketAddr::from(([127, 0, 0, 1], service.port))).await.unwrap()
    });
    let stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}

#[test]
fn a_bystander_logs_in_while_one_address_floods() {
    let service = Service::with(|config| {
        config
            .replace("unauthenticated_max = 200", "unauthenticated_max = 8")
            .replace("unauthenticated_per_address = 50", "unauthenticated_per_address = 2")
    });
    let key = service.key("me");
    // Idle ones, and ones that stop half-way; four times what all queues hold.
    let mut crowd: Vec<TcpStream> = (0..200).map(|_| connect(&service, "127.0.0.3")).collect();
    for stream in crowd.iter_mut().step_by(2) {
        let _ = stream.write_all(b"SSH-2.0-flood\r\n");
    }
    for _ in 0..3 {
        let done = service.run(&key, &["-b", "127.0.0.2", "127.0.0.1", "version"]);
        assert_eq!(done.status, 0, "{done:?}");
    }
}

#[test]
fn an_address_that_fails_is_refused_and_others_are_not() {
    let service = Service::with(|config| {
        config.replace("trusted_addresses = [\"127.0.0.0/8\", \"::1/128\"]", "trusted_addresses = []")
    });
    let key = service.key("me");
    let from = |address| ["-b", address, "127.0.0.1", "version"];
    let deadline = Instant::now() + Duration::from_secs(50);
    let refused = loop {
        // It connects and goes: a second of penalty each.
        drop(connect(&service, "127.0.0.3"));
        let mut stream = connect(&service, "127.0.0.3");
        let mut said = Vec::new();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let _ = stream.read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said).into_owned();
        if said.contains("too many logins failed from your address: try again in ") {
            break service.run(&key, &from("127.0.0.3"));
        }
        assert!(Instant::now() < deadline, "never refused: {said}");
    };
    assert_eq!(refused.status, 255);
    assert!(refused.err.contains("berth: too many logins failed from your address"), "{refused:?}");
    let done = service.run(&key, &from("127.0.0.2"));
    assert_eq!(done.status, 0, "{done:?}");
}

#[test]
fn ssh_audit_finds_nothing_to_fail() {
    let service = Service::start();
    let tool = support::ssh_audit();
    let found = Command::new("timeout")
        .args(["60", "python3", "-m", "ssh_audit", "--skip-rate-test", "--no-colors", "-p"])
        .args([&service.port.to_string(), "127.0.0.1"])
        .env("PYTHONPATH", tool)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&found.stdout);
    // It did look: this is what the gateway offers.
    assert!(text.contains("ssh-ed25519") && text.contains("curve25519-sha256"), "{found:?}");
    // Clients that know no post-quantum exchange yet are taken all the same.
    let is_bad =
        |line: &&str| line.contains("[fail]") || line.contains("[warn]") && !line.contains("post-quantum");
    let bad: Vec<&str> = text.lines().filter(is_bad).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(!text.contains("ecdsa") && !text.contains("(cmp) zlib "), "{text}");
}

#[test]
fn a_crowd_from_one_address_is_told() {
    let service = Service::with(|config| {
        config.replace("unauthenticated_per_address = 50", "unauthenticated_per_address = 2")
    });
    let key = service.key("me");
    let _idle: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", service.port)).unwrap();
            // The identification: it has its place.
            stream.read_exact(&mut [0; 4]).unwrap();
            stream
        })
        .collect();
    let done = service.run(&key, &["127.0.0.1", "version"]);
    assert_eq!(done.status, 255);
    assert!(
        done.err.contains("too many logins at once from your address: try again in a few seconds"),
        "{done:?}"
    );
    let reported = "turned away: too many logins at once from its address";
    wait_for("it was not reported", || {
        service.host.failures().iter().any(|failure| failure.ends_with(reported))
    });
    wait_for("it was not logged", || service.has_logged(reported));
}

#[test]
fn who_does_not_log_in_is_sent_away() {
    let service = Service::with(|config| config.replace("login_grace = \"60s\"", "login_grace = \"1s\""));
    let mut stream = TcpStream::connect(("127.0.0.1", service.port)).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    assert!(said.starts_with(b"SSH-2.0-berth"));
}

#[test]
fn a_burst_of_short_connections_is_served() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "version"]);
    let clients: Vec<_> =
        (0..30).map(|_| service.ssh(&key, &["127.0.0.1", "version"]).spawn().unwrap()).collect();
    for client in clients {
        assert!(client.wait_with_output().unwrap().status.success());
    }
}

#[test]
fn channels_have_a_limit_that_is_told() {
    let service = Service::with(|config| config.replace("channels_max = 1000", "channels_max = 1"));
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "main"]);
    let (_master, control) = service.master(&key, &["main@127.0.0.1", "sleep 300"]);
    let done = service.run(&key, &["-o", &control, "main@127.0.0.1", "true"]);
    // ssh then makes a connection of its own.
    assert!(done.err.contains("Session open refused by peer"), "{done:?}");
    assert_eq!(done.status, 0, "{done:?}");
    wait_for("it was not logged", || {
        service.has_logged("too many channels on one connection: open another connection")
    });
}

#[test]
fn a_user_has_so_many_channels_on_all_connections() {
    let service = Service::with(|config| config.replace("channels_per_user = 2000", "channels_per_user = 1"));
    let (key, other) = (service.key("me"), service.key("other"));
    service.run(&key, &["127.0.0.1", "new", "main"]);
    // There is a connection to share before it has a channel.
    let marker = service.directory.join("running");
    let line = format!("touch {}; sleep 300", marker.display());
    let (master, _) = service.master(&key, &["main@127.0.0.1", &line]);
    wait_for("the session did not begin", || marker.exists());
    let done = service.run(&key, &["main@127.0.0.1", "true"]);
    assert_eq!(done.status, 255, "{done:?}");
    let told = "berth: you have too many channels open: close a session or a forward";
    assert!(done.err.contains(told), "{done:?}");
    assert_eq!(service.run(&other, &["127.0.0.1", "version"]).status, 0, "others have theirs");
    drop(master);
    wait_for("the channel still counts", || service.run(&key, &["main@127.0.0.1", "true"]).status == 0);
}
