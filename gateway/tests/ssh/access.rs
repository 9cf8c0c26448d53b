//! Access that is taken away ends what is open, at once.

use crate::support::{Client, Key, Service};
use std::{
    io::Read,
    process::Command,
    time::{Duration, Instant},
};

fn fingerprint(key: &Key) -> String {
    let shown = Command::new("ssh-keygen").arg("-lf").arg(key.path()).output().unwrap();
    String::from_utf8(shown.stdout).unwrap().split(' ').nth(1).unwrap().to_owned()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A command in a machine that runs until its connection ends, with a forward beside it.
fn open_session(service: &Service, key: &Key, name: &str) -> Client {
    let marker = service.directory.join(name);
    let line = format!("touch {}; sleep 300", marker.display());
    let socket = format!("{}:/nowhere", service.directory.join(format!("{name}.sock")).display());
    let session = service.ssh(key, &["-L", &socket, "main@127.0.0.1", &line]).spawn().unwrap();
    wait_for("the session did not begin", || marker.exists());
    Client(session)
}

/// What a client said that has ended by itself.
fn ended(mut client: Client) -> (Option<i32>, String) {
    let mut said = String::new();
    client.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (client.0.wait().unwrap().code(), said)
}

#[test]
fn a_removed_key_ends_its_connections() {
    let service = Service::start();
    let (key, other) = (service.key("me"), service.key("other"));
    assert_eq!(service.run(&key, &["127.0.0.1", "new", "main"]).status, 0);
    service.run_with_input(&key, &["127.0.0.1", "key", "add"], other.public().as_bytes());
    let theft = open_session(&service, &other, "theft");
    let mut own = open_session(&service, &key, "own");
    let removed = service.run(&key, &["127.0.0.1", "key", "rm", &fingerprint(&other)]);
    assert_eq!(removed.status, 0, "{removed:?}");
    // Nothing but the removal ends it: its command runs for ever.
    let (status, said) = ended(theft);
    assert_eq!(status, Some(255), "{said}");
    assert!(said.contains("berth: the key of this connection was removed"), "{said}");
    assert!(own.0.try_wait().unwrap().is_none(), "the other connection of that user");
}

#[test]
fn a_locked_user_is_out_and_told_why() {
    let service = Service::start();
    let (key, bystander) = (service.key("me"), service.key("bystander"));
    for one in [&key, &bystander] {
        assert_eq!(service.run(one, &["127.0.0.1", "new", "main"]).status, 0);
    }
    let session = open_session(&service, &key, "session");
    let mut other = open_session(&service, &bystander, "bystander-session");
    service.host.lock(&fingerprint(&key));
    let (_, said) = ended(session);
    assert!(said.contains("your account is locked (stolen laptop)"), "{said}");
    let again = service.run(&key, &["127.0.0.1", "ls"]);
    assert_eq!(again.status, 4, "{again:?}");
    assert!(again.said().starts_with("berth: your account is locked (stolen laptop): "), "{again:?}");
    assert!(other.0.try_wait().unwrap().is_none(), "a bystander");
}

#[test]
fn failed_logins_are_reported_with_their_address() {
    let service =
        Service::with(|config| config.replace("registration = \"open\"", "registration = \"closed\""));
    let key = service.key("stranger");
    assert_eq!(service.run(&key, &["-b", "127.0.0.2", "127.0.0.1", "ls"]).status, 255);
    let expected = format!("127.0.0.2 {} no key was accepted", fingerprint(&key));
    wait_for("nothing was reported", || service.host.failures().contains(&expected));
}

#[test]
fn a_user_has_so_many_connections() {
    let service = Service::with(|config| {
        config
            .replace("connections_per_user = 100", "connections_per_user = 1")
            .replace("trusted_addresses = [\"127.0.0.0/8\", \"::1/128\"]", "trusted_addresses = []")
    });
    let (key, bystander) = (service.key("me"), service.key("bystander"));
    let (master, _) = service.master(&key, &["-N", "127.0.0.1"]);
    // As many as would have the address refused, if its logins failed.
    for _ in 0..4 {
        let done = service.run(&key, &["127.0.0.1", "ls"]);
        assert_eq!(done.status, 6, "{done:?}");
        assert!(
            done.said().starts_with("berth: you have 1 connections, the most there may be: "),
            "{done:?}"
        );
    }
    let reported = format!("{} you have 1 connections, the most there may be", fingerprint(&key));
    wait_for("the reason was not reported", || {
        service.host.failures().iter().any(|failure| failure.ends_with(&reported))
    });
    assert!(!service.host.failures().iter().any(|failure| failure.contains("no key was accepted")));
    assert_eq!(service.run(&bystander, &["127.0.0.1", "ls"]).status, 0);
    drop(master);
    wait_for("the place stayed taken", || service.run(&key, &["127.0.0.1", "ls"]).status == 0);
}

#[test]
fn a_new_key_is_told_to_the_holders_of_the_others() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "version"]);
    service.host.warn();
    let done = service.run(&key, &["127.0.0.1", "ls"]);
    assert_eq!(done.status, 0);
    assert!(
        done.said().contains("the key SHA256:planted was added on 1970-01-01 00:00 UTC from 192.0.2.1"),
        "{done:?}"
    );
    assert!(done.said().contains("key rm SHA256:planted"), "{done:?}");
}
