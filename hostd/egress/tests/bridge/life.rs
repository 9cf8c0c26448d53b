//! The process: what it gave up, and what happens when it dies.

use crate::support::{Server, VALUE, World, header, secret};
use berth_egress::control::Event;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::io::Read;

fn world() -> (World, Server) {
    let world = World::new(vec![secret("openai", &["api.example"], vec![header("x-key", "{}")], VALUE)]);
    let server = Server::start(&world, "api.example", "198.51.100.10:443");
    (world, server)
}

#[test]
fn it_has_no_privileges_and_tells_nothing() {
    berth_sys::needs_root!();
    let (world, _server) = world();
    world.guest.curl(&["https://api.example/"]).is("200");
    let pid = world.bridge_pid();
    // Every thread of it: what one kept, whoever is in the process would have.
    let threads: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().collect();
    assert!(threads.len() > 1, "the runtime's threads");
    for thread in threads {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
            line.split_once(':').unwrap().1.trim().replace('\t', " ")
        };
        assert_eq!(field("Uid"), "65534 65534 65534 65534");
        assert_eq!(field("Gid"), "65534 65534 65534 65534");
        assert_eq!(field("Groups"), "");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb", "CapBnd"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        // Filtered by lists of ours: of what is hidden, and of what is allowed.
        assert_eq!(
            (field("NoNewPrivs"), field("Seccomp"), field("Seccomp_filters")),
            ("1".into(), "2".into(), "2".into())
        );
        assert_eq!(field("SigBlk"), "0000000000000000");
    }
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    for (limit, most) in [
        ("Max core file size", "0"),
        ("Max processes", "1024"),
        ("Max locked memory", "0"),
        ("Max msgqueue size", "0"),
    ] {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit)).unwrap();
        assert_eq!(line.split_whitespace().take(2).collect::<Vec<_>>(), [most, most], "{limit}");
    }
    // Not dumpable: its files in /proc are root's, so not even its own user reads them.
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid(), 0);
    for file in ["cmdline", "environ"] {
        let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
        assert!(!String::from_utf8_lossy(&text).contains(VALUE));
    }
}

#[test]
fn killed_it_comes_back_and_nothing_passes_meanwhile() {
    berth_sys::needs_root!();
    let (mut world, server) = world();
    world.guest.curl(&["https://api.example/"]).is("200");
    let mut open = world.guest.connect("198.51.100.10:443").unwrap();
    let first = world.bridge_pid();
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    assert!(open.read(&mut [0]).map_or(true, |count| count == 0), "its connections end");
    let asked = server.seen().len();
    // Waits in the listener's queue until the next process is there.
    world.guest.curl(&["https://api.example/"]).is("200");
    assert_eq!(server.seen().len(), asked + 1);
    assert_eq!(server.last().headers["x-key"], VALUE);
    assert_ne!(world.bridge_pid(), first);
    while !matches!(world.event(), Event::Restarted) {}
    // What was said to the first is known to the second, and it still listens.
    world.update(|terms| terms.secrets.clear());
    world.guest.curl(&["https://api.example/"]);
    assert!(!server.last().headers.contains_key("x-key"));
}

#[test]
fn settings_that_are_refused_are_forgotten() {
    berth_sys::needs_root!();
    let (world, _server) = world();
    let mut settings = world.settings.clone();
    settings.extra_roots = "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n".to_owned();
    world.runtime.block_on(world.bridge.configure(settings)).unwrap_err();
    world.guest.curl(&["https://api.example/"]).is("200");
    kill(Pid::from_raw(world.bridge_pid()), Signal::SIGKILL).unwrap();
    world.guest.curl(&["https://api.example/"]).is("200");
}

#[test]
fn bytes_are_signs_of_life() {
    berth_sys::needs_root!();
    let (mut world, _server) = world();
    world.guest.curl(&["https://api.example/large"]).is("200");
    let moved = loop {
        if let Event::Moved { machine, bytes } = world.event()
            && machine == world.machine
        {
            break bytes;
        }
    };
    assert!(moved > 1000);
}

#[test]
fn an_unlinked_machine_has_no_connections_left() {
    berth_sys::needs_root!();
    let (world, _server) = world();
    let mut waiting = world.guest.connect("198.51.100.10:443").unwrap();
    world.runtime.block_on(world.bridge.unlink(world.machine.clone())).unwrap();
    assert_eq!(waiting.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert!(world.guest.connect("198.51.100.10:443").is_err(), "nobody listens any more");
}
