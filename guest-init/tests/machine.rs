//! What only a machine has: a user of its own, a cgroup, links, identity.
//! Runs against the machine at `BERTH_TEST_GUEST`; without one it says so.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use std::{
    thread,
    time::{Duration, Instant, SystemTime},
};

use berth_guest_protocol::{
    Answer, Command, Control, Exec, Exit, Listen, Open, Opened, RefusedKind, Repair, Target, Vitals,
};
use support::{Guest, Stream, pty};

macro_rules! machine {
    () => {{
        let guest = Guest::start();
        if !guest.is_machine() {
            println!("skipped: BERTH_TEST_GUEST names no machine");
            return;
        }
        guest
    }};
}

fn control(guest: &Guest) -> Stream {
    let (stream, reply) = guest.open(Open::Control);
    assert_eq!(reply.unwrap(), Opened::Control);
    stream
}

fn ask(stream: &mut Stream, request: &Control) -> Answer {
    stream.send(request);
    stream.message()
}

fn vitals(stream: &mut Stream) -> Vitals {
    match ask(stream, &Control::Vitals) {
        Answer::Vitals(vitals) => vitals,
        other => panic!("{other:?}"),
    }
}

fn text(guest: &Guest, line: &str) -> String {
    let outcome = guest.run(line);
    assert_eq!(outcome.exit, Some(Exit::Status(0)), "{line}: {}", String::from_utf8_lossy(&outcome.err));
    outcome.text().trim().to_owned()
}

#[test]
fn commands_run_as_the_user_in_a_clean_process() {
    let guest = machine!();
    assert_eq!(
        text(&guest, "id -un; pwd; echo $HOME $USER $SHELL"),
        "dev\n/home/dev\n/home/dev dev /bin/bash"
    );
    assert_eq!(text(&guest, "cat /proc/self/oom_score_adj /proc/self/cgroup; umask"), "0\n0::/user\n0022");
    assert_eq!(
        text(&guest, "grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f2 | sort -u"),
        "0000000000000000"
    );
    assert_eq!(text(&guest, "ls /proc/$$/fd | tr '\\n' ' '").split(' ').filter(|fd| *fd != "255").count(), 3);
    assert_eq!(text(&guest, "sudo id -u; ulimit -Sn"), "0\n1024");
    let mut terminal =
        guest.exec("stat -c '%U %G %a' $(tty); test /dev/$(ps -o tty= -p $$) = $(tty)", Some(pty(80, 24)));
    let outcome = terminal.outcome();
    assert_eq!((outcome.text().as_str(), outcome.exit), ("dev tty 620\r\n", Some(Exit::Status(0))));
}

#[test]
fn the_links_and_mounts_are_there() {
    let guest = machine!();
    assert!(text(&guest, "ip -br -4 addr show eth0").contains("10.77.0.2/24"));
    assert_eq!(text(&guest, "ip route show default"), "default via 10.77.0.1 dev eth0");
    assert_eq!(text(&guest, "ls /sys/class/net | tr '\\n' ' '"), "eth0 lo");
    assert_eq!(text(&guest, "grep -c nameserver /etc/resolv.conf"), "1");
    assert_eq!(text(&guest, "ping -c1 -W2 localhost >/dev/null; echo $?"), "0");
    text(&guest, "test -w /dev/shm && test -e /dev/fd/0 && test -d /run/lock && test -e /dev/stdout");
    assert_eq!(
        text(&guest, "findmnt -no FSTYPE / /dev/pts /sys/fs/cgroup 2>/dev/null || stat -fc %T /"),
        "ext2/ext3"
    );
    text(
        &guest,
        "test $(df --output=size / | tail -1) -ge $(( $(cat /sys/class/block/vda/size) / 2 * 9 / 10 ))",
    );
}

#[test]
fn the_users_rights_bound_what_is_forwarded() {
    let guest = machine!();
    let listen = |host: &str, port| Open::Listen(Listen::Tcp { host: host.into(), port });
    let refused = guest.open(listen("localhost", 80)).1.unwrap_err();
    assert_eq!(refused.kind, RefusedKind::Denied, "{}", refused.message);
    let path = "/root/socket".to_owned();
    let refused = guest.open(Open::Listen(Listen::Unix { path })).1.unwrap_err();
    assert_eq!(refused.kind, RefusedKind::Denied, "{}", refused.message);
    text(&guest, "sudo rm -f /run/private");
    let mut server = guest.exec(
        "sudo python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.bind(\"/run/private\"); \
         s.listen(); print(\"up\", flush=True); s.accept()'",
        None,
    );
    text(&guest, "sudo sh -c 'while ! test -S /run/private; do sleep 0.1; done; chmod 600 /run/private'");
    let path = "/run/private".to_owned();
    let refused = guest.open(Open::Connect(Target::Unix { path })).1.unwrap_err();
    assert_eq!(refused.kind, RefusedKind::Denied, "{}", refused.message);
    text(&guest, "sudo pkill -f 'run/privat[e]'");
    text(&guest, "sudo rm /run/private");
    server.outcome();
    let (_stream, reply) = guest.open(Open::Listen(Listen::Agent));
    let Ok(Opened::Listening { path, .. }) = reply else { panic!("{reply:?}") };
    assert_eq!(text(&guest, &format!("stat -c %U:%a {path} $(dirname {path})")), "dev:600\ndev:700");
}

#[test]
fn sftp_runs_as_the_user() {
    let guest = machine!();
    let exec = Exec { command: Command::Sftp, env: Vec::new(), pty: None };
    let (mut stream, reply) = guest.open(Open::Exec(exec));
    reply.unwrap();
    stream.data(&[0, 0, 0, 5, 1, 0, 0, 0, 3]);
    stream.data(&[&[0, 0, 0, 10, 16, 0, 0, 0, 1, 0, 0, 0, 1, b'.'][..]].concat());
    stream.eof();
    let outcome = stream.outcome();
    assert_eq!(outcome.exit, Some(Exit::Status(0)));
    assert!(outcome.text().contains("/home/dev") && outcome.text().contains("limits@openssh.com"));
}

#[test]
fn nothing_is_left_unburied() {
    let guest = machine!();
    text(&guest, "for i in $(seq 20); do (setsid sh -c 'sleep 0.1' &) ; done; sleep 1");
    assert_eq!(text(&guest, "ps -eo stat= | grep -c ^Z || true"), "0");
}

#[test]
fn freezing_stops_every_process_and_repair_sets_it_right() {
    let guest = machine!();
    let mut stream = control(&guest);
    assert_eq!(ask(&mut stream, &Control::Ping), Answer::Done);
    let mut ticking = guest.exec("while :; do echo tick; sleep 0.05; done", None);
    let mut shell = {
        let exec = Exec { command: Command::Shell, env: Vec::new(), pty: Some(pty(80, 24)) };
        let (stream, reply) = guest.open(Open::Exec(exec));
        reply.unwrap();
        stream
    };
    shell.data(b"echo re''ady; sleep 1000\r");
    shell.expect("ready");
    ticking.expect("tick");
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut seen = vitals(&mut stream);
    while seen.busy_terminals == 0 {
        assert!(Instant::now() < deadline, "the job is in the foreground: {seen:?}");
        seen = vitals(&mut stream);
    }
    assert!(seen.commands >= 1 && seen.terminals >= 1, "{seen:?}");
    assert!(seen.memory_total > seen.memory_used && seen.disk_total > seen.disk_used && seen.cpu_ns > 0);

    assert_eq!(ask(&mut stream, &Control::Freeze), Answer::Done);
    let still = vitals(&mut stream).cpu_ns;
    thread::sleep(Duration::from_millis(500));
    assert_eq!(vitals(&mut stream).cpu_ns, still, "frozen processes use no time");
    let waits = thread::spawn({
        let address = guest.address;
        move || Guest::at(address).run("hostname; cat /etc/machine-id; date +%s").text()
    });
    let clock = Duration::from_secs(2_000_000_000);
    let repair = Repair {
        clock: u64::try_from(clock.as_nanos()).unwrap(),
        entropy: [7; 32],
        hostname: "renamed".into(),
        renew_identity: true,
        disk: 0,
    };
    assert_eq!(ask(&mut stream, &Control::Repair(repair.clone())), Answer::Done);
    let first = waits.join().unwrap();
    let lines: Vec<&str> = first.lines().collect();
    assert_eq!(lines[0], "renamed");
    assert_eq!(lines[1].len(), 32);
    assert!((2_000_000_000..2_000_000_060).contains(&lines[2].parse::<u64>().unwrap()));
    assert_eq!(text(&guest, "cat /etc/hostname; getent hosts renamed | cut -d' ' -f1"), "renamed\n127.0.1.1");
    ticking.expect("tick");
    shell.data(b"\x03");
    drop(shell);

    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let back = Repair { clock: u64::try_from(now.as_nanos()).unwrap(), renew_identity: false, ..repair };
    assert_eq!(ask(&mut stream, &Control::Repair(back)), Answer::Done);
    assert_eq!(text(&guest, "cat /etc/machine-id"), lines[1], "an identity is kept unless renewed");
    assert_eq!(ask(&mut stream, &Control::Thaw), Answer::Done);
    drop(ticking);
}
