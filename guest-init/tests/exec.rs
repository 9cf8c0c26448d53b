//! Commands and terminals through the protocol, on this host.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use std::{
    io::Write,
    thread,
    time::{Duration, Instant},
};

use berth_guest_protocol::{Command, Event, Exec, Exit, Open, RefusedKind, Reply};
use support::{Guest, Stream, pty};

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn status_output_and_errors_come_back() {
    let guest = Guest::start();
    let outcome = guest.run("echo out; echo err >&2; exit 7");
    assert_eq!(outcome.out, b"out\n");
    assert_eq!(outcome.err, b"err\n");
    assert_eq!(outcome.exit, Some(Exit::Status(7)));
    assert!(!outcome.exit_first);
    let killed = guest.run("kill -KILL $$");
    assert_eq!(killed.exit, Some(Exit::Signal { name: "KILL".into(), core: false }));
}

#[test]
fn a_command_has_a_login_environment() {
    let guest = Guest::start();
    let exec = Exec {
        command: Command::Line(b"echo $HOME:$USER:$LOGNAME:$SHELL:$A; pwd; ps -o sid= -p $$; echo $$".into()),
        env: vec![("A".into(), "x=y".into()), ("BAD=".into(), "z".into())],
        pty: None,
    };
    let (mut stream, reply) = guest.open(Open::Exec(exec));
    reply.unwrap();
    stream.eof();
    let text = stream.outcome().text();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert!(lines[0].ends_with(":x=y") && lines[0].split(':').all(|part| !part.is_empty()), "{text}");
    assert!(lines[0].starts_with(&format!("{}:", lines[1])), "{text}");
    assert_eq!(lines[2], lines[3], "a session of its own");
}

#[test]
fn bytes_pass_unchanged_both_ways() {
    let guest = Guest::start();
    let data: Vec<u8> =
        (0..8 * 1024 * 1024_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut stream = guest.exec("cat", None);
    let mut writer = Stream(stream.0.try_clone().unwrap());
    let sent = data.clone();
    let sender = thread::spawn(move || {
        writer.data(&sent);
        writer.eof();
    });
    let outcome = stream.outcome();
    sender.join().unwrap();
    assert_eq!(outcome.exit, Some(Exit::Status(0)));
    assert!(outcome.out == data, "{} of {} bytes", outcome.out.len(), data.len());
}

#[test]
fn a_reader_that_stops_loses_nothing() {
    let guest = Guest::start();
    let mut stream = guest.exec("head -c 20000000 /dev/zero", None);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(stream.outcome().out.len(), 20_000_000);
}

#[test]
fn input_for_a_process_that_never_reads_does_not_block_its_end() {
    let guest = Guest::start();
    let mut stream = guest.exec("exec 0<&-; echo gone; sleep 0.2; exit 3", None);
    stream.expect("gone");
    stream.data(&vec![1; 4 * 1024 * 1024]);
    stream.eof();
    assert_eq!(stream.outcome().exit, Some(Exit::Status(3)));
}

#[test]
fn the_exit_does_not_wait_for_a_background_job() {
    let guest = Guest::start();
    let outcome = guest.run("(sleep 0.5; echo late) & echo early; exit 4");
    assert_eq!(outcome.text(), "early\nlate\n");
    assert_eq!(outcome.exit, Some(Exit::Status(4)));
    assert!(outcome.exit_first);
}

#[test]
fn a_signal_reaches_the_whole_group() {
    let guest = Guest::start();
    let mut stream = guest.exec("sleep 100 | sleep 100 & echo up; wait", None);
    stream.expect("up");
    stream.send(&Event::Signal("NONSENSE".into()));
    stream.send(&Event::Signal("TERM".into()));
    assert_eq!(stream.outcome().exit, Some(Exit::Signal { name: "TERM".into(), core: false }));
}

#[test]
fn a_terminal_is_one() {
    let guest = Guest::start();
    // A shell whose command ends by itself at the same moment would go on: the
    // trap makes it end in any case.
    let line = "trap 'trap - INT; kill -INT $$' INT
        tty; echo $TERM $SSH_TTY; stty size; while read x; do stty size; done";
    let mut stream = guest.exec(line, Some(pty(100, 40)));
    let text = stream.expect("40 100");
    assert!(text.contains("/dev/pts/") && text.contains("xterm /dev/pts/"), "{text}");
    stream.send(&Event::Resize { columns: 81, rows: 25, width: 0, height: 0 });
    stream.data(b"\r");
    stream.expect("25 81");
    stream.data(b"\x03");
    let outcome = stream.outcome();
    assert_eq!(outcome.exit, Some(Exit::Signal { name: "INT".into(), core: false }));
}

#[test]
fn the_last_words_in_a_terminal_are_not_lost() {
    let guest = Guest::start();
    for _ in 0..20 {
        let mut stream = guest.exec("seq 1 2000", Some(pty(80, 24)));
        let outcome = stream.outcome();
        assert!(outcome.text().ends_with("1999\r\n2000\r\n"), "{}", outcome.text().len());
        assert_eq!(outcome.exit, Some(Exit::Status(0)));
    }
}

#[test]
fn a_background_job_does_not_hold_a_terminal() {
    let guest = Guest::start();
    let started = Instant::now();
    let mut stream = guest.exec("sleep 30 & echo done", Some(pty(80, 24)));
    assert_eq!(stream.outcome().exit, Some(Exit::Status(0)));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_vanished_host_hangs_up_a_terminal_but_not_a_command() {
    let guest = Guest::start();
    let mut terminal = guest.exec("echo pid $$.; exec sleep 1000", Some(pty(80, 24)));
    let mut command = guest.exec("echo pid $$.; exec sleep 1000", None);
    let pid = |text: String| -> u32 {
        text.split("pid ").nth(1).unwrap().split('.').next().unwrap().parse().unwrap()
    };
    let (on_terminal, on_pipes) = (pid(terminal.expect(".")), pid(command.expect(".")));
    drop((terminal, command));
    let alive = |pid: u32| guest.run(&format!("test -e /proc/{pid}")).exit == Some(Exit::Status(0));
    wait_until("the terminal's process is gone", || !alive(on_terminal));
    assert!(alive(on_pipes));
    assert_eq!(guest.run(&format!("kill {on_pipes}")).exit, Some(Exit::Status(0)));
    wait_until("no zombie is left", || !alive(on_pipes));
}

#[test]
fn garbage_ends_its_stream_only() {
    let guest = Guest::start();
    let mut other = guest.exec("cat", None);
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[255; 64],
        &[1, 0, 0, 0, 3],
        &[3, 0, 0, 0, 1, 1, 99],
        &[3, 0, 0, 0, 1, 0, 0],
    ] {
        let mut stream = Stream(guest.raw());
        stream.0.write_all(garbage).unwrap();
        assert_eq!(stream.message::<Reply>().unwrap_err().kind, RefusedKind::Malformed);
        assert!(stream.receive().is_none());
    }
    let mut stream = guest.exec("cat", None);
    stream.0.write_all(&[2, 0, 0, 0, 6, 9]).unwrap();
    assert!(stream.receive().is_none());
    other.data(b"still here");
    other.eof();
    assert_eq!(other.outcome().out, b"still here");
}

#[test]
fn many_streams_at_once() {
    let guest = Guest::start();
    let mut streams: Vec<Stream> = (0..300).map(|_| guest.exec("cat", None)).collect();
    for (n, stream) in streams.iter_mut().enumerate() {
        stream.data(n.to_string().as_bytes());
        stream.eof();
    }
    for (n, stream) in streams.iter_mut().enumerate() {
        assert_eq!(stream.outcome().text(), n.to_string());
    }
}
