//! What a machine's root tries, and what comes of it.

use super::{curl, fresh_value, welcomed};
use crate::context::{Case, Context};
use anyhow::{Context as _, Result, ensure};
use berth_tests::eventually;
use std::time::Duration;

pub const CASES: &[Case] = crate::cases! {
    Service:
        a_secret_goes_nowhere_else,
        requests_are_not_smuggled,
        nothing_of_the_host_is_reached,
        other_packets_are_answered_honestly;
};

/// Each attack on a connection of its own, behind a good request: what was answered.
const SMUGGLE: &str = r#"
import socket, ssl
head = b"POST /bad HTTP/1.1\r\nHost: smuggle.upstream.example\r\n"
chunked = b"Transfer-Encoding: chunked\r\n"
for name, rest in (
    ("both", b"Content-Length: 5\r\n" + chunked + b"\r\n0\r\n\r\n"),
    ("twice", b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
    ("plus", b"Content-Length: +5\r\n\r\nhello"),
    ("identity", b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    ("fold", b"X: a\r\n Content-Length: 5\r\n\r\nhello"),
    ("cr", b"X: a\rContent-Length: 5\r\n\r\nhello"),
    ("lf", b"X: a\nContent-Length: 5\n\nhello"),
    ("extension", chunked + b"\r\n5;a=b\r\nhello\r\n0\r\n\r\n"),
):
    plain = socket.create_connection(("smuggle.upstream.example", 443), 60)
    tls = ssl.create_default_context().wrap_socket(plain, server_hostname="smuggle.upstream.example")
    good = b"GET /smuggle HTTP/1.1\r\nHost: smuggle.upstream.example\r\n\r\n"
    tls.sendall(good + head + rest + good)
    answer = b"".join(iter(lambda: tls.recv(65536), b"")).decode()
    print(name, answer.count("HTTP/1.1 200"), answer.count("HTTP/1.1 403"), answer.count("secret smuggled"))
"#;

fn requests_are_not_smuggled(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let dev = world.machine("dev")?;
    let value = fresh_value("sk-smuggle")?;
    world.set("smuggled --to smuggle.upstream.example --header Authorization: Bearer {}", &value)?;
    world.expect("smuggle", &format!("Bearer {value}"))?;
    dev.write("smuggle.py", SMUGGLE)?;
    let attacks = [
        ("both", "two lengths"),
        ("twice", "two lengths"),
        ("plus", "length of the request"),
        ("identity", "transfer encoding"),
        ("fold", "folded line"),
        ("cr", "bare CR"),
        ("lf", "bare LF"),
        ("extension", "chunk extensions"),
    ];
    // The good one is answered, the bad one refused by name, the smuggled one never read.
    let wanted: Vec<String> = attacks.iter().map(|(name, _)| format!("{name} 1 1 1")).collect();
    let said = dev.exec("python3 smuggle.py")?;
    ensure!(said.line() == wanted.join("\n"), "{}", said.report());
    for (name, reason) in attacks {
        eventually(&format!("a line of {name} in the log"), Duration::from_secs(60), || {
            Ok(world.decisions("dev")?.iter().any(|entry| {
                let has = |key: &str, part: &str| {
                    entry.get(key).and_then(|value| value.as_str()).is_some_and(|value| value.contains(part))
                };
                has("rule", "secret smuggled") && has("verdict", "refused") && has("reason", reason)
            }))
        })
        .with_context(|| format!("{:#?}", world.decisions("dev")))?;
    }
    Ok(())
}

fn a_secret_goes_nowhere_else(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let dev = world.machine("dev")?;
    let value = fresh_value("sk-attack")?;
    world.set("guarded --to guarded.upstream.example --header Authorization: Bearer {}", &value)?;
    world.set("wrong --to wrong.upstream.example --header Authorization: Bearer {}", &value)?;
    world.expect("guarded", &format!("Bearer {value}"))?;
    welcomed(&dev, "https://guarded.upstream.example/guarded")?;
    let elsewhere = world.upstream.address(3);
    for (what, words, status) in [
        ("plain HTTP", "http://guarded.upstream.example/guarded".to_owned(), Some("403")),
        (
            "another Host",
            "-H 'Host: evil.example' https://guarded.upstream.example/guarded".to_owned(),
            Some("403"),
        ),
        (
            "a forged SNI to an address of one's own choice",
            format!(
                "--connect-to guarded.upstream.example:443:{elsewhere}:443 https://guarded.upstream.example/guarded"
            ),
            None,
        ),
        ("a certificate for another name", "https://wrong.upstream.example:9443/guarded".to_owned(), None),
    ] {
        let output = curl(&dev, &format!("-w ' %{{http_code}}' {words}"))?;
        ensure!(!output.text().contains("welcome"), "{what} was welcomed");
        ensure!(!output.text().contains(&value), "{what} shows the value");
        if let Some(status) = status {
            ensure!(output.line().ends_with(status), "{what}: {}", output.report());
            ensure!(output.text().contains("guarded"), "{what}: the rule is not named: {}", output.report());
        }
    }
    world.was_refused("dev", "guarded.upstream.example")?;
    // A server that says it back: the machine has the placeholder, and the log has that.
    let echoed = curl(&dev, "https://guarded.upstream.example/echo")?;
    ensure!(echoed.text().contains("berth_secret_"), "nothing was echoed: {}", echoed.report());
    ensure!(!echoed.text().contains(&value), "the value came back");
    let taken_out = "the answer had the secret in it, which was taken out";
    let words = [("verdict", "allowed"), ("rule", "secret guarded"), ("reason", taken_out)];
    world.logged("dev", &words, "guarded.upstream.example", None)
}

fn nothing_of_the_host_is_reached(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let dev = world.machine("dev")?;
    let gateway_port = world.account.endpoint().address.port();
    let own = world.upstream.address(1);
    // The gateway's banner, the ctl link, the machine's neighbours, the bridge's own ports.
    let mut targets = vec![
        (own.to_string(), gateway_port),
        ("169.254.77.1".to_owned(), 7),
        ("169.254.77.2".to_owned(), 7),
        ("10.77.0.3".to_owned(), 22),
        ("10.77.0.254".to_owned(), gateway_port),
    ];
    targets.extend([10_000, 10_053, 10_080, 10_443].map(|port| ("10.77.0.1".to_owned(), port)));
    let by_address = targets.len();
    let names = berth_tests::REBOUND.iter().map(|(name, _)| *name).chain(["host.upstream.example"]);
    targets.extend(names.map(|name| (name.to_owned(), gateway_port)));
    let tries: Vec<String> = targets
        .iter()
        .map(|(to, port)| format!("echo {to} $(timeout 60 nc -d -w 5 {to} {port} 2>/dev/null | wc -c)"))
        .collect();
    let said = dev.line(&format!("{} & wait", tries.join(" & ")))?;
    for line in said.lines() {
        ensure!(line.ends_with(" 0"), "something answered: {line}");
    }
    ensure!(said.lines().count() == targets.len(), "{said}");
    // Each has its line; a name is refused when it is looked up, before there is a port.
    for (number, (to, port)) in targets.iter().enumerate() {
        let port = (number < by_address).then_some(*port);
        world.logged("dev", &[("verdict", "refused")], to, port)?;
    }
    Ok(())
}

/// Into the namespace of a socket of guest-init's, and from there to the host.
const CONTROL: &str = r#"
import ctypes, fcntl, os, socket
libc = ctypes.CDLL(None)
init = libc.syscall(434, 1, 0)
for number in os.listdir("/proc/1/fd"):
    taken = libc.syscall(438, init, int(number), 0)
    try:
        libc.setns(fcntl.ioctl(taken, 0x894C), 0x40000000)
    except OSError:
        continue
    if "ctl0" in open("/proc/thread-self/net/dev").read():
        try:
            socket.create_connection(("169.254.77.1", 10000), 3)
            print("open")
        except OSError as error:
            print(type(error).__name__)
        break
"#;

fn other_packets_are_answered_honestly(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let dev = world.machine("dev")?;
    let outside = world.upstream.address(2);
    ensure!(dev.run("ping -c 1 -W 5 10.77.0.1")?.status == 0, "the gateway is not there");
    let ping = dev.run(&format!("ping -c 1 -W 5 {outside}"))?;
    ensure!(ping.text().contains("filtered"), "{}", ping.report());
    let udp = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(10); \
               s.connect(('OUTSIDE', 443)); s.send(b'quic?'); s.recv(1)";
    let udp = dev.run(&format!("python3 -c \"{}\"", udp.replace("OUTSIDE", &outside.to_string())))?;
    ensure!(udp.errors().contains("ConnectionRefusedError"), "QUIC would not fall back: {}", udp.report());
    // Nobody served these, and yet the log has them: also a neighbour's.
    dev.run("python3 -c \"import socket; socket.socket(type=2).sendto(b'hello', ('10.77.0.3', 7))\"")?;
    let outside = outside.to_string();
    for (protocol, to, port) in
        [("icmp", &*outside, None), ("udp", &outside, Some(443)), ("udp", "10.77.0.3", Some(7))]
    {
        world.logged(
            "dev",
            &[("verdict", "refused"), ("protocol", protocol), ("rule", "the link")],
            to,
            port,
        )?;
    }
    // Nor does the control link lead anywhere, for a root who gets at it.
    dev.write("control.py", CONTROL)?;
    let control = dev.exec("sudo python3 control.py")?;
    ensure!(control.line() == "TimeoutError", "the control link leads somewhere: {}", control.report());
    world.logged("dev", &[("verdict", "refused"), ("rule", "the control link")], "169.254.77.1", Some(10_000))
}
