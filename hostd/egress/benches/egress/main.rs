//! What the bridge costs: the same clients and servers with it and without it,
//! taking turns in one run, in the namespaces of the tests.
//!
//! Prints one JSON object for each figure, which `make bench` puts into
//! docs/benchmarks.md. The bridge shares the host's cores with both ends.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a measurement that fails stops"
)]

mod client;
mod mitmproxy;
#[allow(dead_code, unused_imports, reason = "the tests use all of it")]
#[path = "../../tests/bridge/support/mod.rs"]
mod support;

use client::Way;
use mitmproxy::Mitmproxy;
use serde_json::json;
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};
use support::{Server, VALUE, World, header, secret};

const BYTES: usize = 512 << 20;
const ROUNDS: usize = 5;
const SPELL: Duration = Duration::from_secs(3);

fn main() {
    // Cargo says `--bench`; a name picks what is measured.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wants = |part: &str| wanted.is_empty() || wanted.iter().any(|one| one == part);
    let mut world = World::with(
        vec![secret("bench", &["api.example"], vec![header("Authorization", "Bearer {}")], VALUE)],
        |settings| settings.limits.half_open = 2048,
    );
    // Somebody has to take the decisions, or the bridge waits.
    let mut events = std::mem::replace(&mut world.events, tokio::sync::mpsc::channel(1).1);
    world.runtime.spawn(async move { while events.recv().await.is_some() {} });
    let _server = Server::start(&world, "api.example", "198.51.100.10:443");
    world.guest.run("getent", &["hosts", "api.example"]);
    if wants("throughput") {
        throughput(&world);
    }
    if wants("requests") {
        requests(&world);
    }
    if wants("memory") {
        memory(&world);
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn say(what: &str, unit: &str, direct: f64, bridge: f64, mitmproxy: Option<f64>) {
    println!(
        "{}",
        json!({ "what": what, "unit": unit, "direct": direct, "bridge": bridge, "mitmproxy": mitmproxy })
    );
}

/// A server that sends what it is asked for as fast as it can.
fn throughput(world: &World) {
    let listener = world.servers.listen("198.51.100.11:9000".parse().unwrap());
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        let piece = vec![0u8; 1 << 18];
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            for _ in 0..BYTES / piece.len() {
                if stream.write_all(&piece).is_err() {
                    break;
                }
            }
        }
    });
    let download = |way: Way| {
        let mut stream: TcpStream = way.connect(world, "198.51.100.11:9000");
        let mut buffer = vec![0u8; 1 << 18];
        let start = Instant::now();
        let mut count = 0;
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            count += read;
        }
        assert_eq!(count, BYTES);
        BYTES as f64 / (1 << 20) as f64 / start.elapsed().as_secs_f64()
    };
    let (mut direct, mut bridge) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        direct.push(download(Way::Direct));
        bridge.push(download(Way::Bridge));
    }
    say("passed through, one connection", "MiB/s", median(direct), median(bridge), None);
}

fn requests(world: &World) {
    let mitmproxy = Mitmproxy::start(world);
    for (what, connections, kept) in [
        ("injected HTTPS requests, 8 kept connections", 8, true),
        ("injected HTTPS requests, each on a new connection", 8, false),
    ] {
        let rate = |way: &Way| client::rate(world, way, connections, kept, SPELL);
        let (mut direct, mut bridge, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..3 {
            direct.push(rate(&Way::Direct));
            bridge.push(rate(&Way::Bridge));
            other.extend(mitmproxy.as_ref().map(|proxy| rate(&proxy.way())));
        }
        let other = (!other.is_empty()).then(|| median(other));
        say(what, "1/s", median(direct), median(bridge), other);
    }
    let one = |way: &Way| {
        let mut times = client::times(world, way, SPELL);
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[times.len() * 99 / 100])
    };
    let (direct, bridge) = (one(&Way::Direct), one(&Way::Bridge));
    let other = mitmproxy.as_ref().map(|proxy| one(&proxy.way()));
    say("one request at a time, p50", "µs", direct.0, bridge.0, other.map(|times| times.0));
    say("one request at a time, p99", "µs", direct.1, bridge.1, other.map(|times| times.1));
}

/// What a connection that nothing moves on costs in the bridge's memory.
fn memory(world: &World) {
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", world.bridge_pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap()
    };
    let listener = world.servers.listen("198.51.100.11:9001".parse().unwrap());
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(b"!").unwrap();
            held.push(stream);
        }
    });
    const COUNT: usize = 400;
    let before = resident();
    let passed: Vec<TcpStream> = (0..COUNT)
        .map(|_| {
            let mut stream = Way::Bridge.connect(world, "198.51.100.11:9001");
            stream.read_exact(&mut [0]).unwrap();
            stream
        })
        .collect();
    say("memory of an idle connection that passes", "KiB", 0.0, (resident() - before) / COUNT as f64, None);
    drop(passed);
    let before = resident();
    let opened = client::idle(world, COUNT);
    say(
        "memory of an idle connection that is opened",
        "KiB",
        0.0,
        (resident() - before) / COUNT as f64,
        None,
    );
    drop(opened);
}
