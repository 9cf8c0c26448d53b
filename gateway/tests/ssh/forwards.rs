//! Forwards, agents, jumps.

use crate::support::{Client, Key, Service, free_port, wait_for};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    process::{Command, Stdio},
};

fn forward(service: &Service, key: &Key, arguments: &[&str]) -> Client {
    let mut all = vec!["-N", "-o", "ExitOnForwardFailure=yes"];
    all.extend(arguments);
    Client(service.ssh(key, &all).spawn().unwrap())
}

fn connect(port: u16) -> TcpStream {
    let mut connected = None;
    wait_for("nobody listens", || {
        connected = TcpStream::connect(("127.0.0.1", port)).ok();
        connected.is_some()
    });
    connected.unwrap()
}

/// Answers every connection with what it got, backwards, after its end.
fn mirror() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut text = Vec::new();
                stream.read_to_end(&mut text).unwrap();
                text.reverse();
                stream.write_all(&text).unwrap();
            });
        }
    });
    port
}

fn ask(mut stream: TcpStream, text: &[u8]) -> Vec<u8> {
    stream.write_all(text).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

#[test]
fn local_forwards_keep_half_closed_streams_alive() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "dev"]);
    let (near, far) = (free_port(), mirror());
    for login in ["dev@127.0.0.1", "127.0.0.1"] {
        let _ssh = forward(&service, &key, &["-L", &format!("{near}:127.0.0.1:{far}"), login]);
        assert_eq!(ask(connect(near), b"abc"), b"cba");
        let large: Vec<u8> = (0..4_u32 << 20).map(|n| (n % 251) as u8).collect();
        let mut back = ask(connect(near), &large);
        back.reverse();
        assert!(back == large);
    }
    let closed = free_port();
    let done = service.run(&key, &["-W", &format!("127.0.0.1:{closed}"), "dev@127.0.0.1"]);
    assert!(done.err.contains("open failed: connect failed: berth: "), "{done:?}");
}

#[test]
fn remote_forwards_listen_in_the_machine() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "dev"]);
    let (inside, here) = (free_port(), mirror());
    let ssh = forward(&service, &key, &["-R", &format!("{inside}:127.0.0.1:{here}"), "dev@127.0.0.1"]);
    assert_eq!(ask(connect(inside), b"abc"), b"cba");
    drop(ssh);
    wait_for("the listener outlived its connection", || TcpStream::connect(("127.0.0.1", inside)).is_err());

    let mut any = forward(&service, &key, &["-v", "-R", &format!("0:127.0.0.1:{here}"), "dev@127.0.0.1"]);
    let log = BufReader::new(any.0.stderr.take().unwrap());
    let line = log.lines().map(Result::unwrap).find(|line| line.starts_with("Allocated port ")).unwrap();
    let port = line.split(' ').nth(2).unwrap().parse().unwrap();
    assert_eq!(ask(connect(port), b"xyz"), b"zyx");
}

#[test]
fn refusals_of_remote_forwards_are_logged_with_their_user() {
    let service = Service::with(|config| config.replace("channels_max = 1000", "channels_max = 1"));
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "dev"]);
    let (first, second, here) = (free_port(), free_port(), mirror());
    let [first_spec, second_spec] = [first, second].map(|port| format!("{port}:127.0.0.1:{here}"));
    let wait_for_log = |text: &str| wait_for(text, || service.has_logged(text));

    // A listener has the only place of its connection: a second listener finds none.
    let both = ["-N", "-o", "ExitOnForwardFailure=yes", "-R", &first_spec, "-R", &second_spec];
    let done = service.run(&key, &[&both[..], &["dev@127.0.0.1"]].concat());
    assert_eq!(done.status, 255, "{done:?}");
    wait_for_log(&format!(
        "a remote forward was refused listener=Tcp {{ host: \"localhost\", port: {second} }} user="
    ));

    // Nor does a connection to the one that listens.
    let _ssh = forward(&service, &key, &["-R", &first_spec, "dev@127.0.0.1"]);
    let _refused = connect(first);
    wait_for_log("channels were refused user=");
}

#[test]
fn sockets_are_forwarded_both_ways() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "dev"]);
    let far = service.directory.join("far.sock");
    let listener = UnixListener::bind(&far).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            stream.unwrap().write_all(b"far").unwrap();
        }
    });
    let near = free_port();
    let _local = forward(&service, &key, &["-L", &format!("{near}:{}", far.display()), "dev@127.0.0.1"]);
    assert_eq!(ask(connect(near), b""), b"far");

    let (inside, here) = (service.directory.join("inside.sock"), mirror());
    let spec = format!("{}:127.0.0.1:{here}", inside.display());
    let _remote = forward(&service, &key, &["-R", &spec, "dev@127.0.0.1"]);
    let mut connected = None;
    wait_for("nobody listens", || {
        connected = UnixStream::connect(&inside).ok();
        connected.is_some()
    });
    let mut stream = connected.unwrap();
    stream.write_all(b"abc").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"cba");
}

#[test]
fn the_agent_is_there_for_as_long_as_the_session() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "dev"]);
    let socket = service.directory.join("agent");
    let agent =
        Command::new("ssh-agent").args(["-D", "-a"]).arg(&socket).stdout(Stdio::null()).spawn().unwrap();
    let _agent = Client(agent);
    wait_for("the agent did not start", || UnixStream::connect(&socket).is_ok());
    let added = Command::new("ssh-add").arg(key.path()).env("SSH_AUTH_SOCK", &socket).output().unwrap();
    assert!(added.status.success());
    let mut ssh = service.ssh(&key, &["-A", "dev@127.0.0.1", "ssh-add -l; ssh-add -L; echo $SSH_AUTH_SOCK"]);
    let done = ssh.env("SSH_AUTH_SOCK", &socket).output().unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    assert!(out.contains("(ED25519)"), "{out}{}", String::from_utf8_lossy(&done.stderr));
    let inside = out.lines().last().unwrap();
    wait_for("its socket is left", || !std::path::Path::new(inside).exists());
    assert_eq!(service.run(&key, &["dev@127.0.0.1", "echo x$SSH_AUTH_SOCK"]).out, "x\n");
}

#[test]
fn a_jump_reaches_ones_own_machine_only() {
    let service = Service::start();
    let (key, other) = (service.key("me"), service.key("other"));
    service.run(&key, &["127.0.0.1", "new", "dev"]);
    service.run(&other, &["127.0.0.1", "new", "theirs"]);
    let jump = |key: &Key, name: &str, command: &str| {
        let proxy = format!("ssh {} -W %h:22 127.0.0.1", service.options(key).join(" "));
        let proxy = format!("ProxyCommand={proxy}");
        service.run(key, &["-o", &proxy, name, command])
    };
    let done = jump(&key, "dev", "echo inside; exit 5");
    assert_eq!((done.status, done.out.as_str()), (5, "inside\n"), "{done:?}");
    let refused = jump(&key, "theirs", "echo inside");
    assert_eq!(refused.status, 255, "{refused:?}");
    assert_eq!(refused.out, "");
}
