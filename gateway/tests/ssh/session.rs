//! Shells and commands through the real `ssh`.

use crate::support::{Client, Service};
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
    time::Duration,
};

#[test]
fn status_output_and_errors_come_back() {
    let service = Service::start();
    let key = service.key("me");
    let first = service.run(&key, &["main@127.0.0.1", "true"]);
    assert_eq!(first.status, 2, "main is not made yet, so this is the lobby: {first:?}");
    assert!(first.err.contains("your key is new here"), "{first:?}");
    assert_eq!(service.run(&key, &["127.0.0.1", "new", "main"]).status, 0);

    let done = service.run(&key, &["main@127.0.0.1", "echo out; echo err >&2; exit 7"]);
    assert_eq!((done.status, done.out.as_str(), done.said().as_str()), (7, "out\n", "err"));
    assert_eq!(service.run(&key, &["main@127.0.0.1", "kill -TERM $$"]).status, 128 + 15);
    assert_eq!(service.run(&key, &["main@127.0.0.1", "kill -KILL $$"]).status, 128 + 9);
}

#[test]
fn a_shell_at_the_lobby_is_the_default_machine() {
    let service = Service::start();
    let key = service.key("me");
    let done = service.run_with_input(&key, &["-T", "127.0.0.1"], b"echo $((6*7)); exit 3\n");
    assert_eq!((done.status, done.out.as_str()), (3, "42\n"), "{done:?}");
    assert!(done.err.contains("your machine 'main' is made"), "{done:?}");
    let again = service.run_with_input(&key, &["-T", "127.0.0.1"], b"exit\n");
    assert_eq!(again.said(), "");
    for login in ["mai", "Main"] {
        let typo = service.run_with_input(&key, &["-T", "-l", login, "127.0.0.1"], b"exit\n");
        let expected = format!(
            "berth: you have no machine '{login}', this is your default machine: for 'main' type: ssh -p {} main@localhost",
            service.port
        );
        assert_eq!(typo.said(), expected);
    }
}

#[test]
fn bytes_pass_unchanged_both_ways() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "main"]);
    let data: Vec<u8> = (0..12_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let done = service.run_with_input(&key, &["main@127.0.0.1", "cat"], &data);
    assert_eq!(done.status, 0, "{}", done.err);
    assert!(done.bytes == data, "{} of {} bytes", done.bytes.len(), data.len());
}

#[test]
fn a_terminal_has_its_size_and_its_keys() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "main"]);
    let line = "test -t 0 && stty size; echo term $TERM; echo ready; cat";
    let mut child = service
        .ssh(&key, &["-tt", "-o", "SetEnv=TERM=vt220", "main@127.0.0.1", line])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("ready\r\n") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        seen.extend(byte);
    }
    // As a person would: a key that the shell took between two commands is
    // pressed again.
    let status = loop {
        let _ = stdin.write_all(b"\x03");
        std::thread::sleep(Duration::from_millis(200));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
    };
    assert_eq!(status.code(), Some(130));
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.starts_with("0 0\r\nterm "), "{seen}");
}

/// A client whose output nobody reads must not stop its own input for ever,
/// nor anything else on the connection.
#[test]
fn a_stuck_command_does_not_stall_the_others() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "main"]);
    let (_master, control) = service.master(&key, &["-N", "main@127.0.0.1"]);
    // Reads nothing: 32 MiB pile up in front of it.
    let stuck = service.ssh(&key, &["-o", &control, "main@127.0.0.1", "exec sleep 300"]);
    let mut stuck = Client({ stuck }.stdin(Stdio::piped()).spawn().unwrap());
    let mut stdin = stuck.0.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        let _ = stdin.write_all(&vec![b'x'; 32 << 20]);
    });
    for turn in 0..20 {
        let done = service.run(&key, &["-o", &control, "main@127.0.0.1", "echo", "turn"]);
        assert_eq!((done.status, done.out.as_str()), (0, "turn\n"), "{turn}: {done:?}");
    }
    let echoed = service.run_with_input(&key, &["-o", &control, "main@127.0.0.1", "cat"], b"typed");
    assert_eq!(echoed.out, "typed");
    assert!(!feeder.is_finished(), "the gateway took 32 MiB that nobody reads");
    drop(stuck);
    feeder.join().unwrap();
}

/// Both directions full at once: what comes back is read late.
#[test]
fn a_slow_reader_gets_everything() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "main"]);
    let mut child = service.ssh(&key, &["main@127.0.0.1", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let data: Vec<u8> = (0..24_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let sent = data.clone();
    let feeder = std::thread::spawn(move || stdin.write_all(&sent));
    // Longer than it takes to fill every buffer on the way.
    std::thread::sleep(Duration::from_secs(4));
    let mut received = Vec::new();
    stdout.read_to_end(&mut received).unwrap();
    feeder.join().unwrap().unwrap();
    assert!(received == data, "{} of {} bytes", received.len(), data.len());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_guest_that_sends_garbage_ends_its_own_channel_only() {
    let service = Service::start();
    let key = service.key("me");
    for name in ["noisy", "mute", "main"] {
        service.run(&key, &["127.0.0.1", "new", name]);
    }
    for name in ["noisy", "mute"] {
        let done = service.run(&key, &[&format!("{name}@127.0.0.1"), "true"]);
        assert_eq!(done.status, 1, "{done:?}");
        assert!(done.said().starts_with("berth: the "), "{done:?}");
    }
    assert_eq!(service.run(&key, &["main@127.0.0.1", "true"]).status, 0);
}

#[test]
fn a_slow_start_is_told() {
    let service = Service::start();
    let key = service.key("me");
    service.host.has_booted();
    service.run(&key, &["127.0.0.1", "new", "slow"]);
    let mut child = service.ssh(&key, &["slow@127.0.0.1", "echo up"]).spawn().unwrap();
    // What it did before is told too where somebody waits for long.
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = errors.any(|line| line == "berth: booting");
    assert!(told, "it ended without a word: {:?}", child.wait_with_output());
    service.host.has_booted();
    let done = child.wait_with_output().unwrap();
    assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(0), &b"up\n"[..]), "{done:?}");
    assert_eq!(errors.next(), None);
}
