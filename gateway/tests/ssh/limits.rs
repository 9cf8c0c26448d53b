//! What the gateway bears, and what it says when it is too much.

use crate::support::Service;
use std::{io::Read, net::TcpStream};

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
    let (_master, control) = service.master(&key, &["main@127.0.0.1", "sleep 60"]);
    let done = service.run(&key, &["-o", &control, "main@127.0.0.1", "true"]);
    // ssh then makes a connection of its own.
    assert!(done.err.contains("Session open refused by peer"), "{done:?}");
    assert_eq!(done.status, 0, "{done:?}");
}
