//! Verbs: what they print, where, and with which status.

use crate::support::{Done, Key, SLOW, Service};
use serde_json::Value;
use std::io::Read;

fn verb(service: &Service, key: &Key, line: &str) -> Done {
    service.run(key, &["127.0.0.1", line])
}

fn value(done: &Done) -> Value {
    serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

#[test]
fn a_machine_s_life() {
    let service = Service::start();
    let key = service.key("me");
    let made = verb(&service, &key, "new dev --memory 512M --label team=web");
    assert_eq!(made.status, 0, "{made:?}");
    let connect = format!("ssh -p {} dev@localhost\n", service.port);
    assert_eq!(made.out, format!("dev is there: 1 CPU, 512M memory, 10G disk\n{connect}"));
    let twice = verb(&service, &key, "new dev");
    assert_eq!((twice.status, twice.out.as_str()), (5, ""));
    assert_eq!(twice.said(), "berth: you have a machine 'dev' already: choose another name");

    let listed = verb(&service, &key, "ls");
    assert!(listed.out.starts_with("NAME  STATE    CPUS  MEMORY"), "{listed:?}");
    let listed = value(&verb(&service, &key, "ls --json"));
    assert_eq!(listed[0]["memory"], 512 << 20);
    assert_eq!(value(&verb(&service, &key, "info dev --json"))["labels"]["team"], "web");
    assert!(verb(&service, &key, "info dev").out.contains("reaches    nothing yet\n"));
    assert_eq!(verb(&service, &key, "info dev --console").out, "booted\n[2Jlogin:\n");
    assert_eq!(verb(&service, &key, "stop dev").out, "dev is stopped\n");
    assert_eq!(verb(&service, &key, "restart dev").out, "dev is running again\n");
    assert_eq!(verb(&service, &key, "rename dev work").out, "dev is now work\n");
    assert_eq!(verb(&service, &key, "rm work nope").status, 3);
    assert_eq!(value(&verb(&service, &key, "rm work --json"))["removed"][0], "work");
    assert!(verb(&service, &key, "ls").out.starts_with("no machines yet"));
    assert_eq!(value(&verb(&service, &key, "ls --json")), Value::Array(Vec::new()));
    assert!(verb(&service, &key, "whoami").out.contains("machines  0 of 10\n"));
    assert!(verb(&service, &key, "version").out.starts_with("berth "));
}

#[test]
fn bad_input_is_one_line_and_makes_nothing() {
    let service = Service::start();
    let key = service.key("me");
    verb(&service, &key, "version");
    for line in [
        "new",
        "new a b",
        "new Dev",
        "new ls",
        "new a --memory 0",
        "new a --memory -1G",
        "new a --disk lots",
        "new a --cpus 0",
        "new 'a",
        "new a\u{7}",
        "nonsense",
        "ls x",
        "rm",
        "rename a",
        "key",
        "key rm '*'",
        "help nonsense",
        "info",
        "new a --ttl soon",
        "new a --size 2G",
        &format!("new {}", "x".repeat(100)),
        &format!("new {}", "x ".repeat(30_000)),
    ] {
        let done = verb(&service, &key, line);
        assert_eq!((done.status, done.out.as_str()), (2, ""), "{line}: {done:?}");
        let said = done.said();
        assert!(said.starts_with("berth: ") && said.lines().count() == 1 && said.len() < 500, "{said}");
        assert!(said.matches(": ").count() >= 2 && !said.contains('\u{7}'), "{said}");
        let failed = verb(&service, &key, &format!("{line} --json"));
        assert_eq!(failed.status, 2, "{line}");
        assert_eq!(value(&failed)["error"]["code"], "usage", "{line}");
    }
    let done = verb(&service, &key, "info nope --json");
    assert_eq!((done.status, value(&done)["error"]["code"].as_str().unwrap()), (3, "not_found"));
    assert_eq!(service.host.machines(), 0);
}

/// The answer would otherwise stand behind what was shown meanwhile.
#[test]
fn a_live_line_is_cleared_before_the_answer() {
    let service = Service::start();
    let key = service.key("me");
    let mut child = service.ssh(&key, &["-tt", "127.0.0.1", &format!("new {SLOW}")]).spawn().unwrap();
    let (mut stdout, mut out) = (child.stdout.take().unwrap(), Vec::new());
    while !String::from_utf8_lossy(&out).contains("berth: booting …") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        out.extend(byte);
    }
    service.host.has_booted();
    stdout.read_to_end(&mut out).unwrap();
    let (status, out) = (child.wait().unwrap(), String::from_utf8_lossy(&out));
    assert_eq!(status.code(), Some(0), "{out:?}");
    assert!(out.contains("berth: booting …\r\u{1b}[Kslow is there: "), "{out:?}");
}

#[test]
fn help_can_be_pasted() {
    let service = Service::start();
    let key = service.key("me");
    let help = verb(&service, &key, "help");
    assert!(help.out.contains(&format!("  ssh -p {} localhost new NAME", service.port)), "{help:?}");
    for name in ["new", "ls", "info", "rm", "stop", "restart", "rename", "key", "whoami", "help", "version"] {
        let one = verb(&service, &key, &format!("help {name}"));
        assert!(one.out.starts_with(&format!("ssh -p {} localhost {name}", service.port)), "{one:?}");
        assert_eq!(verb(&service, &key, &format!("{name} --help")).out, one.out);
    }
    let terminal = service.run(&key, &["-tt", "127.0.0.1", "version"]);
    assert!(terminal.out.ends_with("\r\n"), "{terminal:?}");
}

#[test]
fn keys_come_and_go() {
    let service = Service::start();
    let (key, other) = (service.key("me"), service.key("other"));
    assert_eq!(verb(&service, &key, "new dev").status, 0);
    let added = service.run_with_input(&key, &["127.0.0.1", "key", "add"], other.public().as_bytes());
    assert!(added.out.ends_with("may log in as you now\n"), "{added:?}");
    assert_eq!(value(&verb(&service, &other, "ls --json")).as_array().unwrap().len(), 1);
    assert_eq!(value(&verb(&service, &key, "key ls --json")).as_array().unwrap().len(), 2);
    let third = service.key("third");
    let words = format!("key add {}", third.public().trim());
    assert_eq!(verb(&service, &key, &words).status, 0);
    let keys = value(&verb(&service, &key, "key ls --json"));
    let fingerprint = keys[1]["fingerprint"].as_str().unwrap();
    let removed = verb(&service, &key, &format!("key rm {fingerprint}"));
    assert_eq!(removed.out, format!("{fingerprint} is removed\n"));
    assert_eq!(value(&verb(&service, &other, "ls --json")), Value::Array(Vec::new()), "a stranger again");
    let empty = service.run_with_input(&key, &["127.0.0.1", "key", "add"], b"");
    assert_eq!((empty.status, empty.said().starts_with("berth: there is no key: ")), (2, true));
}

#[test]
fn hostd_away_is_said() {
    let mut service = Service::start();
    let key = service.key("me");
    verb(&service, &key, "version");
    let (_master, control) = service.master(&key, &["-N", "127.0.0.1"]);
    service.host.stop();
    let done = service.run(&key, &["-o", &control, "127.0.0.1", "ls"]);
    assert_eq!(
        (done.status, done.said().as_str()),
        (7, "berth: the host is unavailable: try again in a moment")
    );
    let refused = service.run(&key, &["127.0.0.1", "ls"]);
    assert_eq!((refused.status, refused.said()), (7, done.said()), "{refused:?}");
}
