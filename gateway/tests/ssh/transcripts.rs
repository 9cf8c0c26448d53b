//! What people read, word for word. `BERTH_BLESS=1` writes the files anew.

use crate::support::Service;
use std::{fmt::Write, fs, path::Path};

/// Lines that start with `$` are typed; what follows is what came back, with
/// `!` before standard error and `=` before a status that is not 0.
fn replay(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts").join(name);
    let expected = fs::read_to_string(&path).unwrap();
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "version"]);
    let mut seen = String::new();
    for line in expected.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let done = service.run(&key, &["127.0.0.1", line]);
        let errors: String = done.said().lines().map(|line| format!("! {line}\n")).collect();
        let status = if done.status == 0 { String::new() } else { format!("= {}\n", done.status) };
        write!(seen, "$ {line}\n{}{errors}{status}", done.out).unwrap();
    }
    let seen = seen
        .replace(&format!("-p {}", service.port), "-p 2222")
        .replace(&format!("-P {}", service.port), "-P 2222");
    if std::env::var_os("BERTH_BLESS").is_some() {
        return fs::write(&path, &seen).unwrap();
    }
    assert_eq!(seen, expected);
}

#[test]
fn help() {
    replay("help.txt");
}

#[test]
fn usage() {
    replay("usage.txt");
}
