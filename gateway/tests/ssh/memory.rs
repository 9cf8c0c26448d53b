//! What one client may cost, however it behaves.

use crate::support::{Client, Service};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

/// All that one client may add to the gateway's memory, in KiB: what its
/// connection may have queued (16 MiB and a first window for each channel,
/// 78 MiB), what a thousand channels cost besides, and what the allocator keeps.
const MOST: u64 = 256 << 10;

/// In KiB, the most that there ever was.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_client_that_ignores_its_windows_costs_a_bounded_sum() {
    let service = Service::start();
    let (key, bystander) = (service.key("flood"), service.key("bystander"));
    assert_eq!(service.run(&key, &["127.0.0.1", "new", "stuck"]).status, 0);
    assert_eq!(service.run(&bystander, &["127.0.0.1", "new", "main"]).status, 0);
    let before = peak(service.gateway_pid());
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ssh/flood.py");
    let flood = Command::new("timeout")
        .args(["300", "/usr/bin/python3", "-W", "ignore"])
        .arg(program)
        .args(["127.0.0.1", &service.port.to_string(), "stuck"])
        .arg(key.path())
        .stdout(Stdio::null())
        .spawn();
    let mut flood = Client(flood.unwrap());
    // The gateway reads no more from it, or it has sent everything.
    let mut is_held = false;
    while !is_held && flood.0.try_wait().unwrap().is_none() {
        is_held = service.has_logged("is not read until machines take what it has sent");
        sleep(Duration::from_millis(10));
    }
    let done = service.run(&bystander, &["main@127.0.0.1", "echo here"]);
    let grown = peak(service.gateway_pid()) - before;
    println!("{grown} KiB more");
    assert_eq!((done.status, done.out.as_str()), (0, "here\n"), "{done:?}");
    assert!(grown < MOST, "{grown} KiB more");
    assert!(is_held, "all of it was taken");
}
