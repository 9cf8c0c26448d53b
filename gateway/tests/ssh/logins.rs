//! Who may log in, and with what.

use crate::support::{Service, WORD, wait_for};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::Command,
};

#[test]
fn every_common_kind_of_key_logs_in() {
    let service = Service::start();
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let key = service.key_of(kind, kind);
        let done = service.run(&key, &["127.0.0.1", "version"]);
        assert_eq!(done.status, 0, "{kind}: {done:?}");
    }
    let rsa = service.key_of("old", "rsa");
    for (algorithm, status) in [("rsa-sha2-256", 0), ("rsa-sha2-512", 0), ("ssh-rsa", 255)] {
        let option = format!("PubkeyAcceptedAlgorithms={algorithm}");
        assert_eq!(service.run(&rsa, &["-o", &option, "127.0.0.1", "version"]).status, status, "{algorithm}");
    }
}

#[test]
fn nothing_but_keys() {
    let service = Service::start();
    let key = service.key("me");
    let done = service.run(&key, &["-o", "PubkeyAuthentication=no", "127.0.0.1", "version"]);
    assert_eq!(done.status, 255);
    assert!(done.err.contains("Permission denied (publickey)"), "{done:?}");
}

#[test]
fn closed_means_closed() {
    let service =
        Service::with(|config| config.replace("registration = \"open\"", "registration = \"closed\""));
    let key = service.key("stranger");
    let done = service.run(&key, &["127.0.0.1", "version"]);
    assert_eq!(done.status, 255);
    assert!(done.err.contains("Permission denied (publickey)"), "{done:?}");
}

#[test]
fn the_gateway_is_nobody_and_its_keys_are_roots() {
    berth_sys::needs_root!();
    let service = Service::start();
    let status = fs::read_to_string(format!("/proc/{}/status", service.gateway_pid())).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(field("Uid:"), "65534\t65534\t65534\t65534");
    assert_eq!(field("Groups:"), "65534");
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("CapEff:"), "0000000000000000");
    for (name, mode) in [("", 0o700), ("host_ed25519", 0o600)] {
        let file = fs::metadata(service.directory.join("data/gateway").join(name)).unwrap();
        assert_eq!((file.uid(), file.permissions().mode() & 0o777), (0, mode), "{name}");
    }
}

#[test]
fn a_stopping_gateway_says_goodbye() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "main"]);
    let marker = service.directory.join("running");
    let line = format!("touch {}; sleep 60", marker.display());
    let session = service.ssh(&key, &["main@127.0.0.1", &line]).spawn().unwrap();
    while !marker.exists() {
        std::thread::yield_now();
    }
    let asked = Command::new("kill").arg(service.gateway_pid().to_string()).status().unwrap();
    assert!(asked.success());
    let ended = session.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&ended.stderr).contains("berth: the gateway is restarting"));
}

#[test]
fn a_login_is_announced_before_anything_is_asked_for() {
    let service = Service::start();
    let key = service.key("me");
    // No channel is ever opened on it.
    let _connected = service.master(&key, &["-N", "dev@127.0.0.1"]);
    wait_for("nobody was told", || service.host.expects("dev"));
}

/// More often than a login may fail, and no address is trusted.
#[test]
fn the_host_asks_whether_it_is_ready_as_often_as_it_likes() {
    for registration in ["open", "closed"] {
        let mut service = Service::with(|config| {
            config
                .replace("registration = \"open\"", &format!("registration = \"{registration}\""))
                .replace("trusted_addresses = [\"127.0.0.0/8\", \"::1/128\"]", "trusted_addresses = []")
        });
        let key = service.key("moment");
        for _ in 0..20 {
            let done = service.run(&key, &["_ready@127.0.0.1", "ready"]);
            assert_eq!((done.status, done.out.trim()), (0, WORD), "{registration}: {done:?}");
        }
        let forward = service.run(&key, &["-W", "127.0.0.1:1", "_ready@127.0.0.1"]);
        assert_ne!(forward.status, 0, "{registration}: it may do more than ask: {forward:?}");
        assert_eq!(service.host.users(), 0, "{registration}: it made a user");
        assert_eq!(service.host.failures(), Vec::<String>::new(), "{registration}: it is a failed login");
        service.host.stop();
        let done = service.run(&key, &["_ready@127.0.0.1", "ready"]);
        assert_eq!(done.status, 7, "{registration}: {done:?}");
        assert!(done.err.contains("berth: the host is unavailable"), "{registration}: {done:?}");
    }
}
