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
mod server;
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
use support::{VALUE, World, header, secret};

const PLAIN: &str = "198.51.100.11:9000";
const TLS: &str = "198.51.100.11:443";
const BYTES: usize = 512 << 20;
const ROUNDS: usize = 5;
const SPELL: Duration = Duration::from_secs(3);
const AT_ONCE: usize = 8;

fn main() {
    // Cargo says `--bench`; a name picks what is measured, `alone` only the bridge, for
    // whoever wants a profile of it.
    let mut wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let alone = wanted.extract_if(.., |word| word == "alone").count() > 0;
    let wants = |part: &str| wanted.is_empty() || wanted.iter().any(|one| one == part);
    let mut world = World::with(
        vec![secret("bench", &["api.example"], vec![header("Authorization", "Bearer {}")], VALUE)],
        |settings| settings.limits.half_open = 2048,
    );
    // Somebody has to take the decisions, or the bridge waits.
    let mut events = std::mem::replace(&mut world.events, tokio::sync::mpsc::channel(1).1);
    world.runtime.spawn(async move { while events.recv().await.is_some() {} });
    server::answer_all(&world, "198.51.100.10:443", &world.public.identity("api.example"));
    world.guest.run("getent", &["hosts", "api.example"]);
    if wants("throughput") {
        throughput(&world);
    }
    if wants("requests") {
        requests(&world, alone);
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

/// What nobody has to read, as it is and as TLS by its name.
fn throughput(world: &World) {
    let identity = world.public.identity("other.example");
    server::send_all(world, PLAIN, None, BYTES);
    server::send_all(world, TLS, Some(&identity), BYTES);
    let mut buffer = vec![0u8; 1 << 18];
    let mut download = |way: Way, tls: bool| {
        let config = tls.then(|| way.tls(world));
        let mut stream: Box<dyn Read> = match &config {
            Some(config) => way.inside(world, || Box::new(client::open(&way, config, TLS, "other.example"))),
            None => Box::new(way.connect(world, PLAIN)),
        };
        let (start, mut count) = (Instant::now(), 0);
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            count += read;
        }
        assert_eq!(count, BYTES);
        BYTES as f64 / (1 << 20) as f64 / start.elapsed().as_secs_f64()
    };
    for (what, tls) in
        [("TLS passed through, one connection", true), ("bytes passed through, one connection", false)]
    {
        let (mut direct, mut bridge) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            direct.push(download(Way::Direct, tls));
            bridge.push(download(Way::Bridge, tls));
        }
        say(what, "MiB/s", median(direct), median(bridge), None);
    }
}

fn requests(world: &World, alone: bool) {
    let mitmproxy = if alone { None } else { Mitmproxy::start(world) };
    let mut ways = vec![Way::Bridge];
    if !alone {
        ways.push(Way::Direct);
        ways.extend(mitmproxy.as_ref().map(Mitmproxy::way));
    }
    let figures = |figures: Vec<f64>| {
        let [bridge, direct, other] = [0, 1, 2].map(|number| figures.get(number).copied());
        (direct.unwrap_or_default(), bridge.unwrap_or_default(), other)
    };
    for (what, kept) in [
        ("injected HTTPS requests, 8 kept connections", true),
        ("injected HTTPS requests, each on a new connection", false),
    ] {
        let mut rates = vec![Vec::new(); ways.len()];
        for _ in 0..3 {
            for (way, rates) in ways.iter().zip(&mut rates) {
                rates.push(client::rate(world, way, AT_ONCE, kept, SPELL));
            }
        }
        let (direct, bridge, other) = figures(rates.into_iter().map(median).collect());
        say(what, "1/s", direct, bridge, other);
    }
    let times: Vec<Vec<f64>> = ways
        .iter()
        .map(|way| {
            let mut times = client::times(world, way, SPELL);
            times.sort_by(f64::total_cmp);
            times
        })
        .collect();
    for (what, percent) in [("one request at a time, p50", 50), ("one request at a time, p99", 99)] {
        let at = |times: &Vec<f64>| times[times.len() * percent / 100];
        let (direct, bridge, other) = figures(times.iter().map(at).collect());
        say(what, "µs", direct, bridge, other);
    }
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
